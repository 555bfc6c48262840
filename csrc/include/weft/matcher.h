/* The interface of a grammar backend to the engine. Plain C, so that a backend may be built anywhere.
 *
 * A matcher follows one sequence of tokens. It is used by one thread at a time, needs no GIL, and never raises: a
 * failure is a return value of -1 and a text from `error`. */
#ifndef WEFT_MATCHER_H
#define WEFT_MATCHER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_MATCHER_ABI 2

typedef struct weft_matcher_ops {
  uint32_t abi; /* WEFT_MATCHER_ABI */
  /* Takes `token`: 1 taken, 2 taken and the end of the text is to be rewritten (see `splice`), 0 refused with the
   * state unchanged, -1 error. */
  int (*accept)(void *self, int32_t token);
  /* The number of `tokens[0..count)` that would be taken one after another; the state does not change. -1 error. */
  int (*validate)(void *self, const int32_t *tokens, int count);
  /* Writes the mask of the tokens that may follow to `row` (bit t%32 of word t/32 is token t): 1 some are blocked, 0
   * all are allowed (the row is still written), -1 error (the row is undefined). */
  int (*fill)(void *self, int32_t *row, int words);
  /* Takes back the last `count` accepted tokens: 0, or -1 with the state unchanged. */
  int (*rollback)(void *self, int count);
  /* An independent matcher in the same state, or null. */
  void *(*fork)(void *self);
  /* Back to the start: 0 or -1. */
  int (*reset)(void *self);
  /* Guesses tokens that spell text which must follow, at most `capacity`: their number, or -1 error. The text may be
   * spelled otherwise, but the tokens written would be taken one after another; the state does not change. */
  int (*forced)(void *self, int32_t *tokens, int capacity);
  /* 1 after an end token was taken, else 0. */
  int (*is_terminated)(void *self);
  /* The text of the last -1, valid until the next call. Never null. */
  const char *(*error)(void *self);
  void (*destroy)(void *self);

  /* The functions from here on may be null. */

  /* The temperature for the next token, or a negative number for the request's own. */
  float (*temperature)(void *self);
  /* After an `accept` that gave 2: how many of the last tokens go (at most 1, the one just taken) to `backtrack`, and
   * which come in their place, at most `capacity`, to `tokens`: their number, or -1 error. The matcher stands after
   * them already; `rollback(1)` undoes the whole. */
  int (*splice)(void *self, int *backtrack, int32_t *tokens, int capacity);
} weft_matcher_ops;

typedef struct weft_matcher {
  const weft_matcher_ops *ops;
  void *self;
} weft_matcher;

#ifdef __cplusplus
}
#endif
#endif
