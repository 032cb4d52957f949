/* pretok_table.c - the published pre-tokenizers by their id in model files (tokenizer.ggml.pre).
 *
 * Each pattern is the one in the model's own tokenizer.json (split stages in their order; "digits" and "punctuation" stages are
 * written as patterns), but for three rewritings that match the same text and keep matching linear on long runs:
 * - \s+$ is (?<!\s)\s+$, so that a search does not start again inside each run of white space;
 * - a repeated group at the end of an alternative is possessive;
 * - "digits in threes from the right" is one match of the run, cut afterwards. */
#include "tokenizer/pretok_int.h"

/* GPT-2 and what builds on it */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* cl100k (GPT-4) and its kin: word, digits, marks, line ends, white space */
#define SHORT_FORMS    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD           "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define MARKS          " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(digits) SHORT_FORMS "|" WORD "|" digits "|" MARKS "|" SPACES
/* o200k (GPT-4o): a word is upper then lower */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(short_forms, digits)                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" short_forms "|"        \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" short_forms "|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define NOT_IN_WORD "(?![" PRETOK_WORD "])"
/* Kimi takes Han out of both: [upper]*[lower]+ is then written as the two ways in which it can match, to stay possessive. */
#define NOT_HAN    "(?!\\p{Han})"
#define ASCII_MARK "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK_V3 \
    ASCII_MARK      \
    "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define KANA_HAN "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define BLOOM    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"

/* The letters that DeepSeek LLM lists one by one: cased scripts of 2023. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{"    \
    "293}"                                                                                         \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-" \
    "\\x{38A}"                                                                                     \
    "\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{"    \
    "556}"                                                                                         \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{"   \
    "1CBF}"                                                                                        \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{"   \
    "1F1D}"                                                                                        \
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{"     \
    "1F5F}-\\x{1F7D}"                                                                              \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{"    \
    "1FD0}-\\x{1FD3}"                                                                              \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{"    \
    "2107}"                                                                                        \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{"     \
    "212D}"                                                                                        \
    "\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{"     \
    "2184}"                                                                                        \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{"    \
    "A66D}"                                                                                        \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{"   \
    "ABBF}"                                                                                        \
    "\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{"  \
    "1044F}"                                                                                       \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{"     \
    "118A0}-\\x{118DF}"                                                                            \
    "\\x{1E900}-\\x{1E943}"

/* clang-format off */
const struct pretok_entry pretok_table[] = {
    { "gpt-2 gpt2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
      "modern-bert mpt olmo jais trillion granite-docling exaone4",
      { 0 }, { { GPT2, 0 } } },
    { "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
      { 0 }, { { "\\p{N}", 0 }, { GPT2, 0 } } },
    { "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
      { .ignores_merges = true, .adds_bos = true }, { { CL100K("\\p{N}{1,3}"), 0 } } },
    { "dbrx smaug-bpe chatglm-bpe",
      { 0 }, { { CL100K("\\p{N}{1,3}"), 0 } } },
    { "glm4 glm5",
      { .ignores_merges = true }, { { CL100K("\\p{N}{1,3}"), 0 } } },
    { "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
      { 0 }, { { CL100K("\\p{N}"), 0 } } },
    { "qwen35",
      { 0 },
      { { SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES, 0 } } },
    { "laguna",
      { 0 }, { { "[^\\n]+|[\\n]+", 0 }, { CL100K("\\p{N}"), 0 } } },
    { "minicpm5",
      { .ignores_merges = true }, { { "\\p{N}{1,3}", 0 }, { CL100K("\\p{N}+"), 0 } } },
    { "seed-coder",
      { 0 }, { { SHORT_FORMS "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES, 0 } } },
    { "ufakzeka",
      { 0 }, { { WORD "|\\p{N}|" MARKS "|" SPACES, 0 } } },
    { "bailingmoe bailingmoe2 llada-moe",
      { 0 },
      { { "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|"
          "\\s+", 0 } } },
    { "jais-2",
      { 0 },
      { { SHORT_FORMS "|" WORD "|\\p{N}{1,3}|" MARKS "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|"
          "\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}", 0 } } },
    { "exaone-moe",
      { 0 },
      { { SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|"
          "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+", 0 } } },
    { "tekken",
      { .ignores_merges = true, .adds_bos = true }, { { O200K("", "\\p{N}"), 0 } } },
    { "gpt-4o gpt-oss o200k llama4 kanana2 talkie minimax-m2",
      { 0 }, { { O200K(SHORT_FORMS "?", "\\p{N}{1,3}"), 0 } } },
    { "granite-embed-multi-97m",
      { .ignores_merges = true }, { { O200K(SHORT_FORMS "?", "\\p{N}{1,3}"), 0 } } },
    { "tiny_aya cohere2moe",
      { 0 }, { { "\\d++" NOT_IN_WORD, 3 }, { O200K(SHORT_FORMS "?", "\\p{N}{1,3}"), 0 } } },
    { "youtu",
      { .ignores_merges = true },
      { { "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" KANA_HAN, 0 },
        { "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SHORT_FORMS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" SHORT_FORMS
          "?|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES, 0 } } },
    { "kimi-k2",
      { .ignores_merges = true },
      { { "\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?(?:(?:" NOT_HAN UPPER ")*+\\p{Ll}(?:" NOT_HAN LOWER ")*+|"
          "(?:[\\p{Lu}\\p{Lt}]*+" NOT_HAN "[\\p{Lm}\\p{Lo}\\p{M}])++)" SHORT_FORMS "?|"
          "[^\\r\\n\\p{L}\\p{N}]?(?:" NOT_HAN UPPER ")++(?:" NOT_HAN LOWER ")*+" SHORT_FORMS
          "?|\\p{N}{1,3}|" MARKS "|" SPACES, 0 } } },
    { "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
      { 0 }, { { "\\p{N}{1,3}", 0 }, { KANA_HAN, 0 }, { DEEPSEEK_V3, 0 } } },
    { "spark2_5",
      { 0 },
      { { "\\p{N}{1,3}", 0 },
        { KANA_HAN, 0 },
        { ASCII_MARK "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+", 0 },
        { "\\p{N}", 0 } } },
    { "afmoe",
      { 0 },
      { { "\\p{Nd}++", 3 },
        { "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+", 0 },
        { DEEPSEEK_V3, 0 } } },
    { "deepseek-llm",
      { 0 },
      { { "[\\r\\n]", 0 },
        { "\\s?[" DEEPSEEK_LETTERS "]+", 0 },
        { "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", 0 },
        { "(?<!\\s)\\s+$", 0 },
        { "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", 0 },
        { "\\p{N}+", 0 } } },
    { "deepseek-coder",
      { 0 },
      { { "[\\r\\n]", 0 },
        { "\\s?\\p{L}+", 0 },
        { "\\s?\\p{P}+", 0 },
        { "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", 0 },
        { "\\p{N}", 0 } } },
    { "falcon",
      { 0 }, { { "[\\p{P}$+<=>^~|`]+", 0 }, { GPT2, 0 }, { "[0-9][0-9][0-9]", 0 } } },
    { "chameleon",
      { 0 },
      { { "<sentinel:[0-9]+>", 0 },
        { "IMGIMG[A-I]{1,4}Z", 0 },
        { "[\\t\\n]|    |  ", 0 },
        { "\\p{N}", 0 },
        { "[\\p{P}!-/:-@\\[-`{-~]", 0 },
        { GPT2, 0 } } },
    { "bloom poro-chat gpt3-finnish",
      { 0 }, { { BLOOM, 0 } } },
    { "viking",
      { 0 }, { { BLOOM, 0 }, { "\\p{N}", 0 } } },
    { "superbpe",
      { 0 }, { { "\\p{N}+", 0 }, { "\\d++", 3 } } },
    { "gemma4 granite-embed-multi-311m mmbert sarvam-moe",
      { .is_spm = true }, { { "[^\\n]+|[\\n]+", 0 } } },
    /* what files say whose pre-tokenizer was not recognised when they were made; the field's engines agree on this one */
    { "default",
      { 0 }, { { "[\\p{P}$+<=>^~|]+", 0 }, { GPT2, 0 }, { "\\p{N}+", 0 }, { "[0-9][0-9][0-9]", 0 } } },
    { 0 },
};
/* clang-format on */
