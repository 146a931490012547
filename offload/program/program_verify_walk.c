/* program_verify_walk.c - see program_verify.h. */
#include "offload/program/program_verify.h"

static const char walk[] = "pbbevpfvvpsbss";
static const char early_walk[] =
    "pBsBSSsbBssSSfpbbBfPsfvPSrBrbsrsRsepsBRSRfpSePfpfprSrfpRrrRRevvpePrePRsBePepbSsbfpbrbRsbepbBSsbBfpbBrb"
    "BRsbBepbbbbsbbSsbbfpbbrbbRsbbe";

const char *st_verify_walk(bool early)
{
    return early ? early_walk : walk;
}

enum st_phase st_verify_walk_phase(char letter)
{
    const bool late = letter >= 'A' && letter <= 'Z';
    unsigned phase = ST_PHASE_EVAL;

    switch (late ? letter - 'A' + 'a' : letter) {
    case 'p':
        phase = ST_PHASE_PROLOGUE;
        break;
    case 'b':
        phase = ST_PHASE_BODY;
        break;
    case 's':
        phase = ST_PHASE_BODY_SAVE;
        break;
    case 'r':
        phase = ST_PHASE_BODY_REDO;
        break;
    case 'e':
        phase = ST_PHASE_EPILOGUE;
        break;
    case 'f':
        phase = ST_PHASE_EPILOGUE_SAVE;
        break;
    default:
        break;
    }
    return (enum st_phase)(phase | (late ? ST_PHASE_LATE : 0));
}
