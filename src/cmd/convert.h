// The tensors of an opened model as those of a GGUF file: which go into it under which name and in which type, and how
// their rows are made. Matrices of experts become one stack; what GGUF has fused or in another order becomes that.
#pragma once
#include "cmd/gguf_file.h"
#include "cmd/gguf_recipe.h"
#include "model/model.h"

struct convert;

// From a Hugging Face folder. config: the text of its config.json; t has the names that model_needs says. All are the
// caller's and outlive the conversion.
int convert_from_folder(const struct hparams *h, const char *config, size_t config_bytes, const struct tensors *t,
                        const struct recipe *r, struct convert **out, struct err *e) MUST_CHECK;
// From a GGUF file, whose tensors keep name and order of rows. With requantize, block types may become others, which
// adds their losses up; else that is ERR_USAGE.
int convert_from_gguf(const struct tensors *t, const struct recipe *r, bool requantize, struct convert **out,
                      struct err *e) MUST_CHECK;
void convert_free(struct convert *c); // NULL: nothing

// Gives f its tensors and the function that makes their rows.
void convert_fill(struct convert *c, struct gguf_file *f);
