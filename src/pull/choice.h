// Which files of a listing are pulled: those that were named, or those that Loom needs. Pure.
#pragma once
#include "pull/listing.h"

struct choice {
    uint32_t *files; // indices in the listing, small files first
    uint32_t n;
    const char
        *opened; // path of the GGUF file that loom opens (of a split one, the first); NULL: the folder. In the listing
};

// file: a path, a glob, a file's name, or a type such as Q4_K_M, which means the GGUF model of that type with all its
// shards. NULL: the safetensors of a folder with what belongs to them, or the GGUF model if there is just one.
// ERR_NOT_FOUND names what is near; ERR_USAGE: there are several, and lists them; ERR_UNSUPPORTED: nothing that Loom
// reads. choice_fini after ERR_OK only.
int choice_make(const struct listing *l, const char *repo, const char *file, struct choice *c,
                struct err *e) MUST_CHECK;
void choice_fini(struct choice *c);
// "4.9 GB"
void choice_size_text(uint64_t bytes, char *out, size_t out_bytes);
