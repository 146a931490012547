/* cli/main.c - picks the subcommand, explains it with --help, and turns a status into an exit code. */
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "cli/options/args_table.h"
#include "cli/options/told.h"
#include "cli/ranks.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/print.h"
#include "core/base/word.h"
#include "core/base/wrap.h"
#include "core/system/ulimit.h"
#include "strata/model.h"
#include "strata/types.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Commands that would do their work, and write their outputs, once for each process of a launcher. */
#define ONE_PROCESS                                                                                                              \
    (CLI_CMD_TOKENS | CLI_CMD_EXPORT | CLI_CMD_IMPORT | CLI_CMD_BENCH | CLI_CMD_BENCH_STEP | CLI_CMD_BENCH_IO | CLI_CMD_TUNE)

struct command {
    const char *name;
    enum cli_command bit;
    int (*run)(const struct cli_args *args);
    const char *summary;
    const char *usage; /* after "strata NAME " */
    const char *teach; /* an explanation with an example, a line for each paragraph and command */
};

static const struct command commands[] = {
    {"train", CLI_CMD_TRAIN, cmd_train, "train a model, its state on device, host and NVMe",
     "--model PRESET|DIR --data FILE... --max-steps N [options] | FILE.yaml [options]",
     "Plans the run, prints the plan, trains, and says how far each step is from what the hardware allows.\n\n"
     "Example: the first run: a small model of seeded weights learns a text\n"
     "  strata train --model nano --data book.txt --max-steps 100 --out model\n"
     "  strata generate --model model --prompt 'And God said'\n\n"
     "Example: a model that is here answers as the conversations of a file do\n"
     "  strata train --model ./Qwen3-0.6B --data chats.jsonl --epochs 3 --lr 1e-5 --lr-scheduler cosine --warmup-ratio 0.03 "
     "--val-size 0.1 --eval-every 50 --save runs/chats --save-every 50 --resume auto --out tuned\n\n"
     "What does not fit is refused with exit code 3 before anything is allocated.  The result has the same bits whatever the "
     "budgets and tiers.\n\n"
     "Example: state on disk, a device of 2 MiB\n"
     "  strata tokens book.txt --out book.bin --heldout 0.1\n"
     "  strata train --model nano --data book.bin --max-steps 100 --seq-len 256 --device-memory 2MiB --set "
     "zero_optimization.offload_optimizer.device=nvme --nvme /scratch --out model\n\n"
     "With \"strata.lora\" in the configuration, or --lora, only adapters are trained, and --out is what PEFT loads; "
     "--adapter goes on from one.  docs/adapters.md has more.\n\n"
     "FILE.yaml is LLaMA-Factory's, or XTuner's training arguments (.json, too): its keys are the options, and those of the "
     "command line replace them.  strata check FILE.yaml says what each key means here; docs/yaml.md lists them.  Names of "
     "Trainer's arguments that mean the same are options, too, with - or _; others say what is here instead.\n\n"
     "Example: LLaMA-Factory's example with a model that is here\n"
     "  strata train examples/train_full/qwen3_full_sft.yaml --model ./Qwen3-0.6B --max-steps 100\n\n"
     "Started several times by strata launch, torchrun, accelerate, deepspeed, mpirun or srun, the processes train one model "
     "(zero_optimization.stage says what each of them keeps); docs/ranks.md has more.\n\n"
     "Example: two processes on this machine\n"
     "  strata launch -n 2 train --model nano --data book.bin --max-steps 100"},
    {"launch", CLI_CMD_LAUNCH, cmd_launch, "start the processes of a run on this machine", "-n N [--prefix] COMMAND [options]",
     "Starts COMMAND (train, eval, generate or info --measure) N times, as torchrun and mpirun do, but needs neither PyTorch "
     "nor MPI.  The processes train one model: its bits are those of one process with the same \"strata.leaves\", and "
     "zero_optimization.stage says what each of them keeps.  With --device cuda process K takes GPU K.\n\n"
     "Ctrl-C and other signals go to all of them.  A process that fails ends the others, and its exit code is that of strata "
     "launch; none of them outlives it.  For several machines use torchrun, mpirun or srun: docs/ranks.md.\n\n"
     "Example: two processes; then what four of them would need, without starting any\n"
     "  strata launch -n 2 train --model nano --data book.txt --max-steps 100 --out model\n"
     "  strata plan --model llama-2-7b --gpu 4090 --ram 64GB --ranks 4\n\n"
     "Example: as XTuner's and LLaMA-Factory's NPROC_PER_NODE=2 does\n"
     "  strata launch -n 2 train qwen3_full_sft.yaml --model ./Qwen3-0.6B --save runs/qwen --resume auto\n\n"
     "Example: which process says what\n"
     "  strata launch -n 2 --prefix train --model nano --data book.txt --max-steps 100 --metrics m.jsonl"},
    {"plan", CLI_CMD_PLAN, cmd_plan, "say what a run would need, and whether it fits",
     "--model PRESET|DIR [--config FILE.json] [options]",
     "The same planner that train uses: bytes on each tier, bytes per step on each link, and with rates (--machine or "
     "--measure) the shortest possible step and what would make it shorter.  Takes a whole command line of train, reads no "
     "weights and trains nothing.\n\n"
     "With only --model and a machine, plan searches for the fastest configuration that fits.  It says how long a run takes "
     "(--tokens 1B, or --data FILE.bin --epochs 3), what a larger card would change, and what lies where; or the least memory "
     "that would fit.  Options of a run (--config, --set, --micro-batch, --lr, --out ...), --scale and --ops give that run's "
     "plan.\n\n"
     "Example: how is Llama 3.1 8B trained on a 4090?\n"
     "  strata plan --model llama-3.1-8b --gpu 4090 --ram 64GB --drive 7GB/s:2TB --tokens 1B --write ds.json\n\n"
     "--trace FILE.json also writes one simulated step, lane by lane, for ui.perfetto.dev and for strata.report() of Python.\n\n"
     "A machine that is not here is named by its parts (--gpu list shows the cards), or described by a file (--machine): "
     "neither a GPU nor the directories of --nvme need be here then.\n\n"
     "Example: how long is a step of a 7B model on a 4090 with 64 GB and one drive?\n"
     "  strata plan --model llama-2-7b --seq-len 2048 --gpu 4090 --ram 64GB --drive 7GB/s:2TB --nvme /scratch --set "
     "zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_param.device=cpu\n\n"
     "Example: does gpt2-xl train with 1 GiB of device and 5 GiB of host memory?\n"
     "  strata plan --model gpt2-xl --seq-len 256 --device-memory 1GiB --host-memory 5GiB --nvme /scratch --set "
     "zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_param.device=cpu"},
    {"eval", CLI_CMD_EVAL, cmd_eval, "loss, perplexity and bits per byte of a model on text or tokens",
     "--model PRESET|DIR --data FILE... [options]",
     "Runs only forward passes over every window of the files, with the same plan and budgets as training.  The model's "
     "tokenizer makes tokens of texts (.txt) and of rows of texts or conversations (.json, .jsonl), in a file in $TMPDIR that "
     "goes with the run; of conversations the answers count.  Several processes divide the windows, and find the same figures; "
     "docs/ranks.md has more.\n\n"
     "With --adapter the model has an adapter of PEFT's or ours; of several each gets a line, named as in NAME=DIR.\n\n"
     "Example:\n"
     "  strata eval --model model --data book.heldout.bin\n"
     "  strata eval --model ./Qwen2.5-0.5B --data book.txt"},
    {"generate", CLI_CMD_GENERATE, cmd_generate, "continue a prompt, or talk",
     "--model PRESET|DIR --prompt TEXT | --prompt-file FILE | --prompt-tokens ID,ID,... | --chat [options]",
     "Writes what follows the prompt to standard output as it comes, as text by the directory's tokenizer; after "
     "--prompt-tokens as token ids.  Layers are paged as in training, so a model larger than the device works.  The same seed "
     "gives the same tokens.  Several processes keep a part of the weights each; docs/ranks.md has more.\n\n"
     "With --chat each line of standard input is a message, answered by the directory's chat template.  An empty line or "
     "Ctrl-D ends the conversation; Ctrl-C stops an answer, a second one the program.  Through pipes only the answers go to "
     "standard output.  docs/generate.md has the rest.\n\n"
     "Example: talk to a model, or ask it one thing\n"
     "  strata generate --model ./Qwen2.5-0.5B-Instruct --chat\n"
     "  strata generate --model ./Qwen2.5-0.5B-Instruct --chat --prompt 'Who are you?' --system 'One sentence.' --quiet\n\n"
     "Example: a trained model, its weights on disk\n"
     "  strata generate --model model --prompt 'And God said' --top-p 0.9 --nvme /scratch --device-memory 4MiB --set "
     "zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme"},
    {"tokens", CLI_CMD_TOKENS, cmd_tokens, "turn text into a token file",
     "FILE... --out FILE.bin [--tokenizer DIR] [--val-size X]",
     "Turns text into llm.c's token format: one token per byte, all files one text; or by a tokenizer (tokenizer.json, "
     "tokenizer.model, vocab.json), each file, or each row of .json and .jsonl, a document.  Rows are texts or conversations: "
     "messages, Alpaca's and ShareGPT's columns; of conversations the answers are trained.  The file - is standard input.\n\n"
     "Example: conversations for a model, its template and tokenizer; look at the first\n"
     "  strata tokens talks.jsonl --tokenizer Qwen2.5-0.5B-Instruct --seq-len 2048 --val-size 0.05 --show 1 --out talks.bin\n\n"
     "Example: set every tenth 16 KiB block aside in book.heldout.bin\n"
     "  strata tokens book.txt --out book.bin --heldout 0.1"},
    {"info", CLI_CMD_INFO, cmd_info, "what this machine has, what it lacks, and why",
     "[--nvme DIR]... [--measure --out FILE.json]",
     "Cores, instruction sets, memory, I/O methods and directories for swap files.\n\n"
     "With --measure several processes (docs/ranks.md) measure the links between them, too.\n\n"
     "Example: measure once, and use the rates in every run\n"
     "  strata info --measure --model gpt2 --seq-len 512 --nvme /scratch --out machine.json\n"
     "  strata train --machine machine.json ..."},
    {"bench", CLI_CMD_BENCH, cmd_bench, "how close this machine's parts come to what they could do",
     "optim|link|update|step|io [options]",
     "Each row's ratio is its rate divided by that of a roof, which is measured in the same run, in turns; 1 is as good as it "
     "can be.  docs/bench.md says how to read the tables.\n"
     "  optim   the optimizer's kernels, by state layout, size of the tensor and instruction set.  Roof: the lower of memory "
     "(a stream with the same reads and writes) and arithmetic (the kernel within the caches); bound_by names it.  Layouts: "
     "AdamW over a split master (split), an fp32 master with a bf16 copy (full) or without (fp32); the first two with bf16 "
     "moments (split_bf16m, full_bf16m) and with 8-bit ones (split_8bit, full_8bit); other rules with fp32 moments, split and "
     "full (adagrad, adagrad_full, lion, lion_full, sgd, sgd_full)\n"
     "  link    copies to the device and back, one way and both ways.  Roof: a plain copy of the same bytes by as many "
     "threads; with --device cuda bare copies between memory that the driver pinned and the GPU\n"
     "  update  the update of a whole optimizer state, in memory or on disk, as training runs it.  Roof: the slowest of disk "
     "(read, write, both mixed), memory and kernel, each probed between the updates\n\n"
     "Example: does an update on /scratch wait for the disk, the memory or the processor?\n"
     "  strata bench update --nvme /scratch --params 64M\n\n"
     "Example: how much longer do other systems' updates take on the same drive?\n"
     "  strata bench update --nvme /scratch --params 256M --like zero-infinity --like mlp-offload\n\n"
     "Example: do 8-bit moments save time here, and what do small tensors cost?\n"
     "  strata bench optim --layout split,split_8bit --params 4K,64K,64M\n\n"
     "strata bench step --help explains the bench of a whole step, strata bench io --help the one of drives."},
    {"bench io", CLI_CMD_BENCH_IO, cmd_bench_io, "how fast the directories' drives are, by which method, at what cost",
     "DIR... [--pattern NAME,...] [--fio] [options]",
     "Reads and writes a nameless file in each directory with direct I/O, and prints rate, latency and processor seconds per "
     "10^9 bytes.  Rows run in turns; the ratio is the rate divided by the fastest of the pattern.  ds_io's names are taken: "
     "--read, --write, --io_size, --block_size, --queue_depth, --loops, --folder; what it says of threads has no meaning "
     "here.\n\n"
     "Example: are requests of 256 KiB enough, and is fio faster?\n"
     "  strata bench io /scratch --pattern read,write,optimizer --block 256K,1M --depth 8,32 --fio"},
    {"bench step", CLI_CMD_BENCH_STEP, cmd_bench_step, "whole steps under each schedule: predicted, run, and their bound",
     "--model PRESET|DIR [--machine FILE.json] [options]",
     "Runs a few steps of each update and accumulation policy on random tokens and prints the median step beside the "
     "schedule's bound and what the simulator predicted before the run.  The ratio is the bound divided by the step.  Rates "
     "come from probes between the steps: disk and update always, copies and matmuls on cpu and cuda, with the ceiling that "
     "model FLOPs are held against.\n"
     "  cpu    the model itself, on this machine\n"
     "  cuda   the same on a GPU\n"
     "  paced  moves real bytes, but computes by waiting as long as the GPU of --machine FILE would take, with its links\n\n"
     "Example: would a laptop's GPU wait for this disk?\n"
     "  strata bench step --model gpt2 --machine laptop.json --device paced --nvme /scratch --set "
     "zero_optimization.offload_optimizer.device=nvme\n\n"
     "Example: what does a GPU of 16 GiB cost beside this one, with the state in host memory?\n"
     "  strata bench step --model llama-1b --seq-len 2048 --grad-accum 16 --device cuda --device-memory 16G all --set "
     "zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=cpu"},
    {"tune", CLI_CMD_TUNE, cmd_tune, "find the request size and queue depth that a drive needs",
     "--nvme DIR... [--out CONFIG.json | --write CONFIG.json] [options]",
     "Measures the update's pattern of reads and writes for less than a minute and takes the fewest bytes in flight within 3 % "
     "of the best.  Standard output is a configuration with only DeepSpeed's \"aio\" section; what was measured goes to "
     "standard error.\n\n"
     "Example: tune the drive that a configuration's state goes to\n"
     "  strata tune --nvme /scratch --write ds_config.json"},
    {"check", CLI_CMD_CHECK, cmd_check, "every value of a configuration: its origin and its meaning here",
     "CONFIG.json|FILE.yaml [options]",
     "Takes a whole command line of train.  Exit code 0 if a run would take it, 2 if not; all problems are listed, and nothing "
     "is made.  The keys that are given come first, then those without effect, by what that means, and of a trainer's file "
     "(docs/yaml.md) the options of strata train.  Model and data are opened where they are here, and the places of "
     "checkpoints and results looked at.  The last line is the verdict: what would be refused, what was not looked at, and "
     "what has to be there.  Without a file, under accelerate launch: what its variables say.\n\n"
     "Example:\n"
     "  strata check ds_config.json --max-steps 1000 --lr 1e-4 --set bf16.enabled=true"},
    {"digest", CLI_CMD_DIGEST, cmd_digest, "digest of a model's weights, or of a checkpoint", "DIR [--json]",
     "XXH3-128 over the weights in parameter order, the same as train --digest prints; of a checkpoint also that of the "
     "optimizer's state.\n\n"
     "Example:\n"
     "  strata digest model"},
    {"verify", CLI_CMD_VERIFY, cmd_verify, "whether a checkpoint is what was written", "DIR [--pool] [--sweep] [--json]",
     "Reads all of a checkpoint, or of the newest in a directory of checkpoints, and compares every checksum.  Damage is named "
     "by tensor, file and place, with an older checkpoint that opens, and gives exit code 4.\n\n"
     "Example: is the last checkpoint whole?\n"
     "  strata verify runs/llama\n\n"
     "Example: what did runs that died leave behind?\n"
     "  strata verify runs/llama --pool\n"
     "  strata verify runs/llama --sweep"},
    {"export", CLI_CMD_EXPORT, cmd_export, "a checkpoint's weights as a Hugging Face directory; adapters merged",
     "CHECKPOINT|DIR [--merge] --out DIR [options]",
     "Writes what train --out would have written at that step, of a checkpoint or of the newest in a directory of checkpoints: "
     "the same bytes, with the tokenizer and the other small files that the run began with.  Every checksum of the weights is "
     "compared; of a damaged checkpoint nothing is written (exit code 4).\n\n"
     "eval, generate and train take a checkpoint as --model, without an export.\n\n"
     "--merge adds an adapter, of a checkpoint or of a directory that PEFT or train --out wrote, to the weights that it was "
     "trained beside, and writes those, each in the dtype in which it is stored; everything else is copied byte for byte.\n\n"
     "Example: merge an adapter\n"
     "  strata export --merge --model llama --adapter adapter --out merged\n\n"
     "Example:\n"
     "  strata export runs/llama/step-00000100 --out model\n"
     "  strata generate --model runs/llama --prompt 'And God said'"},
    {"import", CLI_CMD_IMPORT, cmd_import, "a checkpoint of a DeepSpeed run",
     "DIR --model DIR --config FILE.json --out DIR [options]",
     "Makes a checkpoint of a DeepSpeed run's universal checkpoint, which tools/import_deepspeed.py has taken apart: weights "
     "at full precision, Adam's moments, steps and loss scale.  Tensors that are missing, too many or of another shape are "
     "refused by name.\n\n"
     "Example: go on with what DeepSpeed began\n"
     "  python ds_to_universal.py --input_folder run/global_step100 --output_folder run/universal\n"
     "  python tools/import_deepspeed.py run/universal parts\n"
     "  strata import parts --model llama --config ds_config.json --out runs/llama\n"
     "  strata train --model llama --data tokens.bin --config ds_config.json --save runs/llama --resume auto"},
};
#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

int cli_fail(strata_status st)
{
    const char *sentence = strata_last_error();
    char prefix[64], closed[128];

    fflush(stdout);
    snprintf(closed, sizeof(closed), CLI_STDOUT_FAILS ": %s", strerror(EPIPE));
    if (strcmp(sentence, closed) == 0)
        return strata_status_exit_code(st);
    snprintf(prefix, sizeof(prefix), "%serror: ", cli_ranks_prefix());
    cli_told_print(stderr, prefix, *sentence != '\0' ? sentence : strata_status_text(st));
    return strata_status_exit_code(st);
}

static void print_overview(FILE *to)
{
    FILE *const file = st_wrap_open(to);

    st_print_text(file, "strata trains transformer models whose state does not fit the compute device.\n\n"
                        "usage: strata COMMAND [options]\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        st_print(file, "  %-10s  %s\n", commands[i].name, commands[i].summary);
    st_print_text(file, "\n");
    st_print_text(file,
                  "strata COMMAND --help explains a command; strata --version (-V) prints the version.\n\n"
                  "Exit codes: 0 done, 1 internal, 2 usage, configuration or input, 3 does not fit, 4 I/O, 5 numerics, 128 + "
                  "its number ended by a signal (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP).\n");
    st_wrap_close(file, to);
}

static void print_presets(FILE *file)
{
    st_print_text(file, "\nPresets: ");
    for (uint32_t i = 0; strata_preset_name(i) != NULL; i++)
        st_print(file, "%s%s", i > 0 ? ", " : "", strata_preset_name(i));
    st_print_text(file, "\n");
}

/* No others are read but launchers', HOME, and those that say where CUDA and Python's packages are. */
static void print_variables(FILE *file)
{
    st_print_text(
        file, "\nVariables that name a file, which is otherwise searched for: STRATA_CUBLASLT (libcublasLt.so.13), STRATA_NCCL "
              "(libnccl.so.2), STRATA_MPI (strata_mpi.so)\n"
              "\nSTRATA_CACHE names the directory where the rates of this machine are kept for an hour, in place of strata in "
              "XDG_CACHE_HOME or in ~/.cache; empty: they are not kept\n");
    st_print_text(file, "\nVariables of launchers say which of several processes this is: docs/ranks.md\n");
}

static void print_help(const struct command *command)
{
    FILE *const file = st_wrap_open(stdout);

    st_print(file, "usage: strata %s %s\n\n", command->name, command->usage);
    st_print_text(file, command->teach);
    st_print_text(file, "\n");
    cli_args_print_options(command->bit, file);
    if ((command->bit & RANKED) != 0)
        print_variables(file);
    if ((command->bit & CONFIGURES) != 0)
        st_print_text(file, "\nVariables of accelerate launch that say what its config file does: ACCELERATE_*, FSDP_*, "
                            "PARALLELISM_CONFIG_* (docs/ranks.md)\n");
    if (cli_option_find(command->bit, "model") != NULL)
        print_presets(file);
    st_wrap_close(file, stdout);
}

enum cli_command cli_command_named(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].bit;
    return 0;
}

static int unknown_command(const char *name)
{
    const struct command *nearest = NULL;
    uint32_t edits_least = st_word_edits_most(name) + 1;

    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const uint32_t edits = st_word_edits(name, commands[i].name);

        if (edits < edits_least) {
            edits_least = edits;
            nearest = &commands[i];
        }
    }
    if (nearest != NULL)
        return cli_fail(st_error(STRATA_E_INVAL, "unknown command \"%s\": did you mean %s?", name, nearest->name));
    return cli_fail(st_error(STRATA_E_INVAL, "unknown command \"%s\": strata --help lists the commands", name));
}

/* Checks that everything printed was written: a full disk behind a redirection is an error. */
static int finish_output(int code)
{
    const int err = st_print_flush(stdout);

    return err == 0 || code != 0 ? code : cli_fail(st_error_errno(err, CLI_STDOUT_FAILS));
}

/* For tests: prints which sites were passed, or which one fired. */
static void print_faults(const char *text)
{
    struct st_fault_tally tally;

    for (uint32_t i = 0; st_fault_tally_at(&tally, i); i++)
        if (text[0] == '?' || tally.fired > 0)
            st_print(stderr, "fault: %s passed %u fired %u\n", tally.site, tally.passed, tally.fired);
}

static int run_command(const struct command *command, int argc, char **argv)
{
    struct cli_args args;
    strata_status st = cli_args_parse(&args, command->bit, argc, argv);
    int code;

    if (st == STRATA_OK && args.fault != NULL && st_fault_arm_text(args.fault) != 0)
        st = st_error(STRATA_E_INVAL, "--fault: \"%s\" is not SITE[:after[:count[:result]]]", args.fault);
    if (st == STRATA_OK && !args.help && (command->bit & ONE_PROCESS) != 0)
        st = cli_ranks_alone(&args, command->name);
    if (st != STRATA_OK) {
        code = cli_fail(st);
    } else if (args.help) {
        print_help(command);
        code = 0;
    } else {
        code = command->run(&args);
    }
    code = finish_output(code);
    if (args.fault != NULL)
        print_faults(args.fault);
    cli_args_fini(&args);
    return code;
}

/* Two benches are separate commands with their own options. */
static const char *name_of_call(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "bench") == 0 && strcmp(argv[2], "step") == 0)
        return "bench step";
    if (argc > 2 && strcmp(argv[1], "bench") == 0 && strcmp(argv[2], "io") == 0)
        return "bench io";
    return argv[1];
}

/* Opens closed standard descriptors, as otherwise a file of ours could get such a number and receive printed output.  What is
 * written to them fails as before. */
static void open_closed_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd) /* open() returns the lowest free number */
            abort();
}

/* deepspeed puts --local_rank=N before all words of the command line: behind the command it is an option. */
static void move_local_rank(int argc, char **argv)
{
    char *const first = argc > 2 ? argv[1] : "";

    if (strncmp(first, "--local_rank=", strlen("--local_rank=")) != 0 &&
        strncmp(first, "--local-rank=", strlen("--local-rank=")) != 0)
        return;
    argv[1] = argv[2];
    argv[2] = first;
}

static int run(int argc, char **argv)
{
    move_local_rank(argc, argv);
    if (argc < 2) {
        print_overview(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_overview(stdout);
        return finish_output(0);
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        st_print_text(stdout, "strata " STRATA_VERSION_STRING "\n");
        return finish_output(0);
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name_of_call(argc, argv), commands[i].name) == 0)
            return run_command(&commands[i], argc, argv);
    return unknown_command(argv[1]);
}

int main(int argc, char **argv)
{
    strata_status st;

    open_closed_files();
    st_log_configure(cli_told_log, NULL, ST_LOG_INFO);
    st_print_keys_by(cli_told);
    st_ulimit_spare();
    if ((st = st_ulimit_check_stack()) == STRATA_OK)
        st = cli_signals_start();
    return st == STRATA_OK ? run(argc, argv) : cli_fail(st);
}
