/* A matcher in C: a number of n digits whose last one is its check digit (Luhn), as on cards. No grammar can say that.
 *
 *   cc -shared -fPIC -I "$(python -c 'import weft; print(weft.include_dir())')" matcher_plugin.c -o matcher_plugin.so
 *   weft.Guide.plugin("matcher_plugin.so", "16")
 */
#include <weft/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 64 };

/* What all requests with one arg share. It does not change. */
typedef struct guide {
  const weft_vocabulary *vocabulary;
  int num_digits;
} guide;

/* One request. `lengths` are the digits of each token taken, so that it can be taken back. */
typedef struct matcher {
  const guide *guide;
  char digits[MOST_DIGITS];
  int lengths[MOST_DIGITS];
  int num_digits, num_tokens, has_ended;
  char error[80];
} matcher;

static int fail(matcher *m, const char *text) {
  snprintf(m->error, sizeof m->error, "%s", text);
  return -1;
}

/* Every second digit from the right counts twice; 9 is taken from what has two digits then. */
static int is_checked(const char *digits, int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    int digit = digits[count - 1 - i] - '0';
    if (i % 2 == 1) digit = digit > 4 ? 2 * digit - 9 : 2 * digit;
    sum += digit;
  }
  return sum % 10 == 0;
}

static int is_end(const weft_vocabulary *v, int32_t token) {
  for (int32_t i = 0; i < v->num_end_tokens; ++i)
    if (v->end_tokens[i] == token) return 1;
  return 0;
}

/* Whether a token may follow; its digits are then after the others, and not counted yet. */
static int allows(matcher *m, int32_t token, int *length) {
  const weft_vocabulary *v = m->guide->vocabulary;
  if (m->has_ended || token < 0 || token >= v->size) return 0;
  *length = (int)(v->starts[token + 1] - v->starts[token]);
  if (m->num_digits == m->guide->num_digits) return is_end(v, token);
  if (*length == 0 || *length > m->guide->num_digits - m->num_digits) return 0;
  const char *text = v->text + v->starts[token];
  for (int i = 0; i < *length; ++i)
    if (text[i] < '0' || text[i] > '9') return 0;
  memcpy(m->digits + m->num_digits, text, (size_t)*length);
  return m->num_digits + *length < m->guide->num_digits || is_checked(m->digits, m->guide->num_digits);
}

static int accept(void *self, int32_t token) {
  matcher *m = self;
  int length = 0;
  if (!allows(m, token, &length)) return 0;
  if (m->num_digits == m->guide->num_digits) return m->has_ended = 1;
  m->lengths[m->num_tokens++] = length;
  m->num_digits += length;
  return 1;
}

static int rollback(void *self, int count) {
  matcher *m = self;
  if (count < 0 || count > m->num_tokens + m->has_ended) return fail(m, "rollback of tokens that were not taken");
  if (count > 0 && m->has_ended) m->has_ended = 0, --count;
  for (; count > 0; --count) m->num_digits -= m->lengths[--m->num_tokens];
  return 0;
}

static int validate(void *self, const int32_t *tokens, int count) {
  int taken = 0;
  while (taken < count && accept(self, tokens[taken])) ++taken;
  return rollback(self, taken) < 0 ? -1 : taken;
}

static int fill(void *self, int32_t *row, int words) {
  matcher *m = self;
  const weft_vocabulary *v = m->guide->vocabulary;
  if (words < (v->size + 31) / 32) return fail(m, "the mask row is shorter than the vocabulary");
  memset(row, 0, (size_t)words * sizeof *row);
  for (int32_t token = 0; token < v->size; ++token) {
    int length;
    if (m->has_ended ? is_end(v, token) : allows(m, token, &length))
      row[token / 32] = (int32_t)((uint32_t)row[token / 32] | 1u << (token % 32));
  }
  return 1;
}

static void *fork_matcher(void *self) {
  matcher *copy = malloc(sizeof *copy);
  if (copy) memcpy(copy, self, sizeof *copy);
  return copy;
}

static int reset(void *self) {
  matcher *m = self;
  m->num_digits = m->num_tokens = m->has_ended = 0;
  return 0;
}

static int forced(void *self, int32_t *tokens, int capacity) {
  (void)self, (void)tokens, (void)capacity;
  return 0;
}

static int is_terminated(void *self) { return ((matcher *)self)->has_ended; }
static const char *error(void *self) { return ((matcher *)self)->error; }

static const weft_matcher_ops ops = {WEFT_MATCHER_ABI, accept, validate, fill,          rollback, fork_matcher,
                                     reset,            forced, is_terminated, error, free,     NULL,
                                     NULL};

static void *open(const weft_vocabulary *vocabulary, const void *arg, size_t arg_size, char *error, size_t error_size) {
  char text[8] = {0};
  memcpy(text, arg, arg_size < sizeof text ? arg_size : sizeof text - 1);
  const int num_digits = atoi(text);
  if (num_digits < 2 || num_digits > MOST_DIGITS) {
    snprintf(error, error_size, "give the number of digits as arg, 2 to %d", MOST_DIGITS);
    return NULL;
  }
  guide *made = malloc(sizeof *made);
  if (made) *made = (guide){vocabulary, num_digits};
  return made;
}

static int make(void *self, weft_matcher *made, char *error, size_t error_size) {
  matcher *m = calloc(1, sizeof *m);
  if (!m) return snprintf(error, error_size, "out of memory"), -1;
  m->guide = self;
  *made = (weft_matcher){&ops, m};
  return 0;
}

const weft_plugin_ops weft_plugin = {WEFT_PLUGIN_ABI, open, make, NULL, free};
