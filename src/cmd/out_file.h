// A file that a command writes: beside its name until it is whole, and never over what the command reads.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include <stdbool.h>

struct out_file {
    const char *path;
    bool force;
    int fd;
    char temp[LIMIT_PATH]; // its name so far; "": it has none
};

// Before any work: whether path can become a new file, or, with force, replace a regular one. ERR_USAGE, ERR_IO.
int out_file_check(const char *path, bool force, struct err *e) MUST_CHECK;
// ERR_USAGE: path is `in`, a file that the model `in` lies in, or one of the folder `in` (links followed), so that
// writing would destroy what is read.
int out_file_refuse_input(const char *path, const char *in, struct err *e) MUST_CHECK;

// Where the system can, the file has no name until it is placed, so that not even a killed process leaves it; else one
// that nobody else has.
int out_file_open(struct out_file *f, const char *path, bool force, struct err *e) MUST_CHECK;
// Gives it its name, on the disk too. Without force a file that came there meanwhile stays: ERR_USAGE.
int out_file_place(struct out_file *f, struct err *e) MUST_CHECK;
void out_file_close(struct out_file *f); // what was not placed is gone
