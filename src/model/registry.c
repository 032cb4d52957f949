/* registry.c - the list of families. A new one is a line here, its file, its golden and a row in the docs. */
#include "model/model_int.h"

#include <string.h>

static const struct model_family *const families[] = {
    &family_llama,  &family_qwen2,      &family_qwen3,      &family_gemma,     &family_gemma2,
    &family_gemma3, &family_smollm3,    &family_minicpm,    &family_granite,   &family_phi3,
    &family_olmo2,  &family_glm4,       &family_starcoder2, &family_qwen3moe,  &family_gpt_oss,
    &family_qwen35, &family_qwen35moe,  &family_qwen3next,  &family_gemma4,    &family_qwen2moe,
    &family_bert,   &family_nomic_bert, &family_qwen4exp,   &family_projected,
};

const struct model_family *model_family_at(int i)
{
    return i >= 0 && (size_t)i < ARRAY_LEN(families) ? families[i] : NULL;
}

const struct model_family *model_family_find(const char *arch)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        for (const char *const *a = families[i]->archs; *a; a++)
            if (strcmp(*a, arch) == 0)
                return families[i];
    return NULL;
}
