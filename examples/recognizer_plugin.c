/* A recogniser in C: brackets that close what they opened, up to n of them in all, byte by byte.
 *
 *   cc -shared -fPIC -I "$(python -c 'import weft; print(weft.include_dir())')" recognizer_plugin.c -o recognizer_plugin.so
 *   weft.Guide.plugin("recognizer_plugin.so", "20")
 */
#include <weft/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1024 };

/* The bytes are the stack: what is open follows from them. */
typedef struct recognizer {
  int limit, count;
  char bytes[MOST_BYTES];
} recognizer;

/* The brackets that are open, from the outside in. */
static int open_brackets(const recognizer *r, char *open) {
  int depth = 0;
  for (int i = 0; i < r->count; ++i) {
    if (strchr("([{", r->bytes[i]))
      open[depth++] = r->bytes[i];
    else
      --depth;
  }
  return depth;
}

static int byte_allowed(void *self, uint8_t byte) {
  const recognizer *r = self;
  char open[MOST_BYTES];
  const int depth = open_brackets(r, open);
  switch (byte) {
    case '(': case '[': case '{': return r->count + depth + 2 <= r->limit;
    case ')': return depth > 0 && open[depth - 1] == '(';
    case ']': return depth > 0 && open[depth - 1] == '[';
    case '}': return depth > 0 && open[depth - 1] == '{';
    default: return 0;
  }
}

static int push_byte(void *self, uint8_t byte) {
  recognizer *r = self;
  r->bytes[r->count++] = (char)byte;
  return 0;
}

static int pop_bytes(void *self, int count) {
  ((recognizer *)self)->count -= count;
  return 0;
}

static int special_allowed(void *self, int32_t token) {
  char open[MOST_BYTES];
  (void)token; /* any end will do */
  return ((recognizer *)self)->count > 0 && open_brackets(self, open) == 0;
}

static const char *error(void *self) { return (void)self, ""; }

static const weft_recognizer_ops ops = {WEFT_RECOGNIZER_ABI, push_byte, pop_bytes, byte_allowed, special_allowed, error,
                                        free,                NULL,      NULL,      NULL,         NULL};

static void *open_guide(const weft_vocabulary *v, const void *arg, size_t arg_size, char *error, size_t error_size) {
  char text[8] = {0};
  (void)v; /* bytes know no tokens */
  memcpy(text, arg, arg_size < sizeof text ? arg_size : sizeof text - 1);
  int *limit = malloc(sizeof *limit);
  if (limit && ((*limit = atoi(text)) < 2 || *limit > MOST_BYTES)) {
    snprintf(error, error_size, "give the most brackets as arg, 2 to %d", MOST_BYTES);
    free(limit);
    return NULL;
  }
  return limit;
}

static int make(void *guide, weft_recognizer *made, char *error, size_t error_size) {
  recognizer *r = calloc(1, sizeof *r);
  if (!r) return snprintf(error, error_size, "out of memory"), -1;
  r->limit = *(int *)guide;
  *made = (weft_recognizer){&ops, r};
  return 0;
}

const weft_plugin_ops weft_plugin = {WEFT_PLUGIN_ABI, open_guide, NULL, make, free};
