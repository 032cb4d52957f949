/* lab_int.h - what the harness's schedules share. lab.c: labs. schedules.c: records and schedules. disk.c: those that have a disk. */
#ifndef PLUMB_TESTS_EXACT_LAB_INT_H
#define PLUMB_TESTS_EXACT_LAB_INT_H

#include "exact.h"

/* A row of a running scenario. */
struct runner_row {
    row_id row;
    bool is_open;
    bool is_fetching; /* begins (row_begin) once the disk is read */
    const struct exact_request *req;
    int32_t n_emitted;
    int32_t pending; /* ids to take */
    int32_t n_embd;
    int n_preempted;
};

/* The row's memory, and in it what is kept. */
enum err_code row_begin(struct lab *lab, struct runner_row *row, struct err *err) MUST_CHECK;
void row_close(struct lab *lab, struct runner_row *row);

enum err_code alone_run(struct lab *lab, int32_t chunk, const struct exact_request *req,
                        struct buf *record, struct err *err) MUST_CHECK;
/* A row that has taken the request's prompt: all of it, or the first percent of it and then other ids. */
enum err_code fork_lead(struct lab *lab, struct exact_request *lead, int32_t percent,
                        struct runner_row *row, struct err *err) MUST_CHECK;
enum err_code mixed_run(struct lab *lab, const struct scenario *sc,
                        const struct exact_request *requests, int n, struct buf *records,
                        struct err *err) MUST_CHECK;

/* --- disk.c; without a disk nothing happens --- */

/* An empty directory for the engine. Errors: ERR_IO. */
enum err_code lab_disk_open(struct lab *lab, struct engine_model_options *o,
                            struct err *err) MUST_CHECK;
void lab_disk_close(struct lab *lab);
/* Ask for more of the row's ids than memory has; is_waiting: until that is over. Else is_fetching says whether it is under way. */
void lab_disk_fetch(struct lab *lab, struct runner_row *row, bool is_waiting);
void lab_disk_tend(struct lab *lab);
enum err_code disk_run(struct lab *lab, const struct scenario *sc,
                       const struct exact_request *requests, int n, struct buf *records,
                       struct err *err) MUST_CHECK;

#endif
