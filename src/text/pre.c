// tokenizer.ggml.pre: a GGUF file has the name of a pre-tokenizer, not the pre-tokenizer. The patterns are those of the
// tokenizer.json files from which the files that carry the name were made.
#include "text/pre.h"
#include <string.h>

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BLANKS  "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
// cl100k and its kin, which differ in how many digits are a piece.
#define CL100K(digits) ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" BLANKS
// o200k: words are cut where lower case ends.
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(endings, digits)                                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" endings "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" endings         \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" BLANKS
#define DIGIT "\\p{N}"
#define DEEPSEEK_V3                                                                                                    \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"                \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*" BLANKS
// DeepSeek's list of cased letters: those of Unicode without the later ones and some scripts.
#define NOT_CASED                                                                                                      \
    "[\\x{560}-\\x{588}\\x{10c7}\\x{10cd}\\x{10d0}-\\x{10ff}\\x{1c80}-\\x{1c88}\\x{2d00}-\\x{2d2d}\\x{a790}-\\x{a7ff}" \
    "\\x{ab30}-\\x{ab68}\\x{10570}-\\x{105bc}\\x{16e40}-\\x{16e7f}\\x{1d400}-\\x{1d7cb}\\x{1df00}-\\x{1df1e}]"
#define CJK_WIDE "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

static const struct pre pres[] = {
    {" gpt-2 phi-2 gigachat a.x-4.0 mellum jais trillion granite-docling exaone4 ", .patterns = {PRE_GPT2}},
    {" olmo mpt ", .nfc = true, .patterns = {PRE_GPT2}},
    {" smollm starcoder refact codeshell exaone minerva-7b ", .patterns = {DIGIT, PRE_GPT2}},
    {" command-r ", .nfc = true, .patterns = {DIGIT, PRE_GPT2}},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", .whole = true, .bos = true,
     .patterns = {CL100K("\\p{N}{1,3}")}},
    {" dbrx smaug-bpe glm4 chatglm-bpe ", .patterns = {CL100K("\\p{N}{1,3}")}},
    {" qwen2 deepseek-r1-qwen stablelm2 megrez kormo f2llmv2 ", .nfc = true, .patterns = {CL100K("\\p{N}")}},
    {" hunyuan solar-open grok-2 ", .patterns = {CL100K("\\p{N}")}},
    {" qwen35 ", .nfc = true,
     .patterns = {ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" BLANKS}},
    {" seed-coder ",
     .patterns = {ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" BLANKS}},
    {" bailingmoe bailingmoe2 llada-moe ",
     .patterns = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
                  "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {" gpt-4o llama4 kanana2 talkie minimax-m2 ", .patterns = {O200K(ENDINGS "?", "\\p{N}{1,3}")}},
    {" tekken ", .whole = true, .bos = true, .patterns = {O200K("", "\\p{N}")}},
    {" deepseek-v3 hunyuan-dense joyai-llm ",
     .patterns = {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK_V3}},
    {" deepseek-llm ",
     .patterns = {"[\\r\\n]", ("\\s?(?:(?!" NOT_CASED ")[\\p{Lu}\\p{Ll}\\p{Lt}])++"),
                  "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+", "\\s+$",
                  CJK_WIDE, "\\p{N}+"}},
    {" deepseek-coder ", .patterns = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_WIDE, DIGIT}},
    {" bloom poro-chat gpt3-finnish ", .patterns = {" ?[^(\\s|.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81"
                                                    "\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+"}},
    {" viking ",
     .patterns = {" ?[^(\\s|.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+",
                  DIGIT}},
    // Files without a name, from before there were names.
    {" default ", .patterns = {"[\\p{P}$+<=>^~|]+", PRE_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

const struct pre *pre_find(const char *name, size_t len_bytes) {
    char word[64];
    if (len_bytes + 3 > sizeof word || memchr(name, ' ', len_bytes) || memchr(name, 0, len_bytes)) return NULL;
    word[0] = ' ';
    memcpy(word + 1, name, len_bytes);
    memcpy(word + 1 + len_bytes, " ", 2);
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (strstr(pres[i].names, word)) return &pres[i];
    return NULL;
}

const struct pre *pre_at(size_t i) { return i < sizeof pres / sizeof *pres ? &pres[i] : NULL; }
