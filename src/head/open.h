// A model as it lies on disk, opened: hyper-parameters, sampling defaults, tensors. Read-only afterwards, any thread.
#pragma once
#include "base/err.h"
#include "model/model.h"
#include "weights/tensors.h"

struct opened_model {
    char *path;        // as given
    char *name;        // last part of the path, without ".gguf": how clients call it
    char *config_json; // of a GGUF file: made from its metadata
    size_t config_bytes;
    struct hparams hparams;
    struct gen_defaults defaults;
    struct tensors *tensors;
};

// path: a Hugging Face folder (config.json, *.safetensors, ...) or a .gguf file (any one of a split model).
int open_model(const char *path, struct opened_model *m, struct err *e) MUST_CHECK;
void open_model_close(struct opened_model *m); // zeroed or opened
