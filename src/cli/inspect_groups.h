/* inspect_groups.h - which types a model's parts have: attention, experts, norms and so on, by the names of GGUF and of directories. */
#ifndef PLUMB_CLI_INSPECT_GROUPS_H
#define PLUMB_CLI_INSPECT_GROUPS_H

#include "weights/weights.h"
#include "json/json.h"

/* Bytes in the file, with the scales and biases that go with codes. */
uint64_t inspect_tensor_bytes(const struct weights_tensor *t);
uint64_t inspect_tensor_elems(const struct weights_tensor *t);

/* One line for each group and type: tensors, elements, bytes, bits a number. */
void inspect_groups_print(const struct weights *w);
/* A field "groups": an object of objects by type. */
void inspect_groups_json(struct json_writer *j, const struct weights *w);

#endif
