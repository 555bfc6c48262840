/* The interface between a grammar backend and the engine. It is plain C, so that any toolchain can build a backend.
 *
 * A matcher follows one sequence of tokens. One thread at a time uses it, without the GIL. It never throws: on failure
 * it returns -1, and `error` returns the reason. */
#ifndef WEFT_MATCHER_H
#define WEFT_MATCHER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version 3 renames `splice` to `edit`. weft also accepts tables of version 2, which have the same layout. */
#define WEFT_MATCHER_ABI 3

typedef struct weft_matcher_ops {
  uint32_t abi; /* WEFT_MATCHER_ABI */
  /* Accepts `token`. Returns 1 if accepted, 2 if accepted and the text must be edited (see `edit`), 0 if refused, with
   * the state unchanged, or -1 on error. */
  int (*accept)(void *self, int32_t token);
  /* Returns the number of `tokens[0..count)` that would be accepted in sequence, or -1 on error. The state does not
   * change. */
  int (*validate)(void *self, const int32_t *tokens, int count);
  /* Writes the mask of the tokens that may follow to `row` (bit t%32 of word t/32 is token t). Returns 1 if some tokens
   * are blocked, 0 if all are allowed (the row is still written), or -1 on error (the row is undefined). */
  int (*fill)(void *self, int32_t *row, int words);
  /* Rolls back the last `count` accepted tokens. Returns 0, or -1 with the state unchanged. */
  int (*rollback)(void *self, int count);
  /* Returns an independent matcher in the same state, or null on error. */
  void *(*fork)(void *self);
  /* Returns to the start of the text: 0, or -1 on error. */
  int (*reset)(void *self);
  /* Writes at most `capacity` tokens that spell forced text. Returns their number, or -1 on error. Other tokens may
   * spell the same text, but the matcher would accept the written ones in sequence. The state does not change. */
  int (*forced)(void *self, int32_t *tokens, int capacity);
  /* Returns 1 after an end token was accepted, else 0. */
  int (*is_terminated)(void *self);
  /* Returns the reason of the last error, valid until the next call. Never null. */
  const char *(*error)(void *self);
  void (*destroy)(void *self);

  /* The functions from here on may be null. */

  /* Returns the temperature for the next token, or a negative number to use the request's. */
  float (*temperature)(void *self);
  /* Called after `accept` returned 2: gives the edit of the text. Writes to `drop` the number of last tokens to drop
   * (0, or 1 for the token just accepted), and to `append` at most `capacity` tokens to append then. Returns the number
   * of appended tokens, or -1 on error. The matcher's state is already after the edit; `rollback(1)` undoes the token
   * and its edit together. */
  int (*edit)(void *self, int *drop, int32_t *append, int capacity);
} weft_matcher_ops;

typedef struct weft_matcher {
  const weft_matcher_ops *ops;
  void *self;
} weft_matcher;

#ifdef __cplusplus
}
#endif
#endif
