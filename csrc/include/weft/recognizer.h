/* A recogniser decides byte by byte which texts are allowed. weft makes a matcher from it by walking the bytes of the
 * vocabulary's tokens. The interface is plain C.
 *
 * A recogniser is a stack of states: pushing a byte puts the state after it on top, popping removes states. One thread
 * at a time uses it. On failure a function returns -1, and `error` returns the reason. */
#ifndef WEFT_RECOGNIZER_H
#define WEFT_RECOGNIZER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_RECOGNIZER_ABI 1

typedef struct weft_recognizer_ops {
  uint32_t abi; /* WEFT_RECOGNIZER_ABI */
  /* Pushes `byte`, which must be allowed. Returns 0 or -1. */
  int (*push_byte)(void *self, uint8_t byte);
  /* Pops the last `count` bytes. Returns 0 or -1. */
  int (*pop_bytes)(void *self, int count);
  /* Returns 1 if `byte` may follow, 0 if not, -1 on failure. */
  int (*byte_allowed)(void *self, uint8_t byte);
  /* Returns 1 if the end token `token` may follow, so that the text may end here; 0 if not; -1 on failure. */
  int (*special_allowed)(void *self, int32_t token);
  /* Returns the reason of the last failure, valid until the next call. Never null. */
  const char *(*error)(void *self);
  void (*destroy)(void *self);

  /* The functions from here on may be null. */

  /* Pushes `byte` if it is allowed. Returns 1 if it did, 0 if not, -1 on failure. */
  int (*try_push_byte)(void *self, uint8_t byte);
  /* Called after a token was accepted: only the state on top must be kept. Returns 0 or -1. With this function, a
   * rollback makes a new recogniser and pushes all bytes again; without it, a rollback pops bytes. */
  int (*collapse)(void *self);
  /* Called after each mask, when the stack is as it was before the mask. Returns 0 or -1. */
  int (*trie_finished)(void *self);
  /* Returns an independent recogniser in the same state, or null. Without this function, weft makes a new recogniser
   * and pushes all bytes again. */
  void *(*fork)(void *self);
} weft_recognizer_ops;

typedef struct weft_recognizer {
  const weft_recognizer_ops *ops;
  void *self;
} weft_recognizer;

#ifdef __cplusplus
}
#endif
#endif
