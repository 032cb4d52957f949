/* sched_world.h - a scheduler over the scripted engine, and what became of each request. For the tests of sched/.
 *
 * Request ids below ALL_MAX have an outcome, filled by next_event and the functions that wait. */
#ifndef PLUMB_TESTS_SUPPORT_SCHED_WORLD_H
#define PLUMB_TESTS_SUPPORT_SCHED_WORLD_H

#include "engine_script.h"
#include "sched/sched.h"

#define WAIT_US   10000000 /* no event takes so long, even under tsan on a busy machine */
#define ALL_MAX   64
#define TEXT_MAX  4096
#define STEP_SLOW 20000

struct world {
    struct engine_script_config script;
    struct sched_config config;
    struct engine *engine;
    struct sched *sched;
    int fail_load;
    int64_t load_us;
};

struct outcome {
    char text[TEXT_MAX];
    size_t n;
    int n_finished;
    struct sched_finished end;
    int order; /* of its finish among all */
};

extern struct outcome outcomes[ALL_MAX];
extern int n_ended; /* requests that have finished */

void world_start(struct world *w, int32_t rows, int64_t step_us);
void take_event(const struct sched_event *ev);
void next_event(struct world *w, struct sched_event *ev);
void wait_ready(struct world *w);
struct sched_request *make_full(req_id id, const char *text, int32_t max_tokens, const char *stop);
void submit(struct world *w, req_id id, const char *text);
void wait_ended(struct world *w, int n);
void wait_tokens(struct world *w, req_id id, size_t n);
void assert_outcome(req_id id, enum finish finish, const char *text);
void world_stop(struct world *w);

#endif
