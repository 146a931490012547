/* cli/commands/monitor.h - what DeepSpeed's sections "tensorboard" and "csv_monitor" ask for: scalars of each step over the
 * sequences so far, which a run that resumes goes on with.
 *
 * As there, OUTPUT_PATH/JOB_NAME/ has an events file of each attempt, and Train_Samples_lr.csv and the like.  A file that cannot
 * be written any more does not end the run: a warning says so, and the run ends with it. */
#ifndef CLI_COMMANDS_MONITOR_H
#define CLI_COMMANDS_MONITOR_H

#include "cli/report/metrics.h"
#include "core/system/file.h"
#include "strata/config.h"

#define CLI_MONITOR_SCALARS 4

struct cli_monitor_file {
    struct st_new_file file;
    uint64_t bytes; /* written */
    bool on;
};

struct cli_monitor {
    struct cli_monitor_file events, csv[CLI_MONITOR_SCALARS];
    bool goes_on, again, overwrite; /* as in the options */
    bool scales;                    /* the loss scale is one */
    char sentence[1024];            /* of the first file that could not be written */
};
#define CLI_MONITOR_NONE                                                                                                         \
    ((struct cli_monitor){.events.file.fd = -1, .csv = {{.file.fd = -1}, {.file.fd = -1}, {.file.fd = -1}, {.file.fd = -1}}})

struct cli_monitor_opts {
    struct strata_monitor tensorboard, csv;
    bool overwrite; /* CSV files that exist are replaced */
    bool goes_on;   /* the run resumes: of CSV files that exist the rows up to there stay; those that have others are set aside */
    bool again;     /* it begins, perhaps not for the first time: CSV files that exist are set aside */
    bool scales;    /* there is a loss scale */
};

/** Begin the files under temporary names.
 *  @return E_INPUT: a CSV file exists, and none of the flags says what to do, or one cannot be made; E_NOSPC, E_IO */
strata_status cli_monitor_open(struct cli_monitor *m, const struct cli_monitor_opts *opts);
/** Give them their names, with what they have of the run up to that number of sequences. */
strata_status cli_monitor_begin(struct cli_monitor *m, uint64_t sequences);
/** @param sequences  so far, the step's included */
void cli_monitor_step(struct cli_monitor *m, const struct strata_metrics *step, uint64_t sequences);
/** After the last step.  E_IO with the sentence of what could not be written. */
strata_status cli_monitor_end(struct cli_monitor *m);
void cli_monitor_close(struct cli_monitor *m);

#endif
