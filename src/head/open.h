// A model as it lies on disk, opened: hyper-parameters, sampling defaults, tensors. Read-only afterwards, any thread.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include "model/model.h"
#include "weights/tensors.h"

struct opened_model {
    char *path;        // by open_model_path
    char *name;        // last part of the path, without ".gguf": how clients call it
    char *config_json; // of a GGUF file: made from its metadata
    size_t config_bytes;
    struct hparams hparams;
    struct gen_defaults defaults;
    struct tensors *tensors;
};

// Where the model lies that is given as path: the one GGUF model of a folder without config.json; else path itself.
// ERR_NOT_FOUND: nothing is there that could be one, or several are; the text says what to give.
int open_model_path(const char *path, char out[LIMIT_PATH], struct err *e) MUST_CHECK;
// given: a Hugging Face folder (config.json, *.safetensors, ...), a .gguf file (any one of a split model), or a folder
// with one such file.
int open_model(const char *given, struct opened_model *m, struct err *e) MUST_CHECK;
void open_model_close(struct opened_model *m); // zeroed or opened
