// What GGUF files call the tensors, against what the models' Hugging Face folders call them. One table for both ways.
#pragma once
#include "base/limits.h"
#include <stdbool.h>
#include <stdint.h>

// arch: general.architecture of the file ("llama", "qwen3moe", ...). False: no such tensor of that architecture.
// *is_stack: the matrices of all experts, outermost dimension; out then has "%u" in place of the expert's number.
bool gguf_names_to_hf(const char *arch, const char *name, char out[LIMIT_TENSOR_NAME], bool *is_stack);
// *expert: which one of the stack that out names; UINT32_MAX: the whole tensor.
bool gguf_names_from_hf(const char *arch, const char *name, char out[LIMIT_TENSOR_NAME], uint32_t *expert);
// GGUF's architecture for one of config.json ("Qwen3ForCausalLM"); NULL: none. Several of the latter share one of the
// former.
const char *gguf_names_arch(const char *hf_architecture);
// Whether the tables know this general.architecture; gguf_names_known: a list of them for error texts.
bool gguf_names_is_known(const char *arch);
const char *gguf_names_known(void);
