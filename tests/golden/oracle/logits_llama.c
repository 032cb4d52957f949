/* logits_llama.c - llama.cpp's logits for given ids, as raw float32, for tests/golden/oracle/compare.py.
 *
 *   logits_llama MODEL.gguf < ROWS > LOGITS      a row is one line: FROM ID ID ...; the logits of its positions FROM.. are written
 *
 * Not built by the Makefile; build line as in tests/golden/llama_cpp/make_greedy.c. Each row is one batch.
 */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

#define IDS_MAX   1024
#define LINE_MAX_ (1 << 16)

int main(int argc, char **argv)
{
    static char line[LINE_MAX_];
    if (argc != 2)
        return 2;
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        return 1;
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = IDS_MAX;
    cp.n_threads = cp.n_threads_batch = 2;
    struct llama_batch batch = llama_batch_init(IDS_MAX, 0, 1);
    while (fgets(line, sizeof(line), stdin)) {
        struct llama_context *ctx = llama_init_from_model(model, cp);
        char *end;
        int from = (int)strtol(line, &end, 10);
        batch.n_tokens = 0;
        for (char *p = end; batch.n_tokens < IDS_MAX; p = end) {
            int i = batch.n_tokens;
            batch.token[i] = (llama_token)strtol(p, &end, 10);
            if (end == p)
                break;
            batch.pos[i] = i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = i >= from;
            batch.n_tokens++;
        }
        if (llama_decode(ctx, batch) != 0)
            return 1;
        for (int i = from; i < batch.n_tokens; i++)
            fwrite(llama_get_logits_ith(ctx, i), sizeof(float), (size_t)n_vocab, stdout);
        llama_free(ctx);
    }
    return 0;
}
