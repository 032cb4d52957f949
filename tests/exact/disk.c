/* disk.c - schedules in which kept histories come from disk. */
#include "base/clock.h"
#include "lab_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_US 60000000

enum err_code lab_disk_open(struct lab *lab, struct engine_model_options *o, struct err *err)
{
    snprintf(lab->disk_dir, sizeof(lab->disk_dir), "/tmp/exact.XXXXXX");
    if (!mkdtemp(lab->disk_dir)) {
        lab->disk_dir[0] = '\0';
        return err_set(err, ERR_IO, "/tmp: %s", strerror(errno));
    }
    o->disk_dir = lab->disk_dir;
    o->disk_bytes = (int64_t)4 << 30;
    return ERR_OK;
}

void lab_disk_close(struct lab *lab)
{
    char command[64];
    snprintf(command, sizeof(command), "rm -rf '%s'", lab->disk_dir);
    if (lab->disk_dir[0] != '\0' && system(command) != 0)
        fprintf(stderr, "%s is left behind\n", lab->disk_dir);
}

void lab_disk_tend(struct lab *lab)
{
    if (lab->disk_dir[0] != '\0')
        lab->engine->ops->tend(lab->engine);
}

void lab_disk_fetch(struct lab *lab, struct runner_row *row, bool is_waiting)
{
    struct engine *e = lab->engine;
    if (lab->disk_dir[0] == '\0')
        return;
    row->is_fetching = e->ops->fetch(e, row->row);
    while (is_waiting && row->is_fetching) { /* it ends by itself, at the latest after a minute */
        clock_sleep_us(200);
        e->ops->tend(e);
        row->is_fetching = e->ops->is_fetching(e, row->row);
    }
}

static enum err_code lab_flush(struct lab *lab, struct err *err)
{
    struct engine *e = lab->engine;
    bool is_durable;
    int64_t until = clock_us() + WAIT_US;
    e->ops->flush(e);
    while (!e->ops->flush_is_over(e, &is_durable)) {
        if (clock_us() > until)
            return err_set(err, ERR_TIMEOUT, "a flush takes more than a minute");
        clock_sleep_us(200);
        e->ops->tend(e);
    }
    return is_durable ? ERR_OK : err_set(err, ERR_IO, "what is kept did not reach the disk");
}

/* A new engine, which has the disk alone. */
static enum err_code lab_restart(struct lab *lab, struct err *err)
{
    lab->engine->ops->free(lab->engine);
    lab->engine = NULL;
    return engine_model_new(&lab->options, &lab->engine, err);
}

/* What another request left: percent of the prompt and then other ids; below 0: that many ended there. */
static enum err_code disk_lead(struct lab *lab, int32_t percent, const struct exact_request *req,
                               struct err *err)
{
    static struct exact_request lead;
    struct runner_row row;
    lead = *req;
    if (percent < 0)
        lead.engine.n_prompt = lead.engine.n_prompt * -percent / 100 + 1;
    enum err_code code = fork_lead(lab, &lead, percent < 0 ? 100 : percent, &row, err);
    row_close(lab, &row);
    return code ? code : lab_flush(lab, err);
}

static int64_t lab_files_read(const struct lab *lab)
{
    struct engine_disk_stats s;
    lab->engine->ops->disk_stats(lab->engine, &s);
    return s.read;
}

enum err_code disk_run(struct lab *lab, const struct scenario *sc,
                       const struct exact_request *requests, int n, struct buf *records,
                       struct err *err)
{
    enum err_code code = ERR_OK;
    bool is_mixed = sc->schedule == SCHEDULE_DISK_MIXED;
    lab->n_read = 0;
    for (int i = 0; i < n && !code; i++) {
        code = disk_lead(lab, is_mixed ? -100 : sc->chunk, &requests[i], err);
        if (!code && !is_mixed)
            code = lab_restart(lab, err);
        if (!code && !is_mixed)
            code = alone_run(lab, 7, &requests[i], &records[i], err);
        if (!code)
            lab->n_read += lab_files_read(lab);
    }
    if (!code && is_mixed)
        code = lab_restart(lab, err);
    if (!code && is_mixed)
        code = mixed_run(lab, sc, requests, n, records, err);
    if (!code && is_mixed)
        lab->n_read = lab_files_read(lab);
    return code;
}
