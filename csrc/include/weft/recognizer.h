/* A recogniser decides byte by byte which texts are allowed. weft makes a matcher of it by walking the tokens of the
 * vocabulary. Plain C.
 *
 * It is a stack of states: pushing a byte puts the state after it on top, popping removes states. It is used by one
 * thread at a time. A failure is a return value of -1 and a text from `error`. */
#ifndef WEFT_RECOGNIZER_H
#define WEFT_RECOGNIZER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_RECOGNIZER_ABI 1

typedef struct weft_recognizer_ops {
  uint32_t abi; /* WEFT_RECOGNIZER_ABI */
  /* Pushes `byte`, which is allowed: 0, or -1. */
  int (*push_byte)(void *self, uint8_t byte);
  /* Takes back the last `count` bytes: 0 or -1. */
  int (*pop_bytes)(void *self, int count);
  /* Whether `byte` may follow: 1, 0 or -1. */
  int (*byte_allowed)(void *self, uint8_t byte);
  /* Whether the end token `token` may follow, so that the text may end here: 1, 0 or -1. */
  int (*special_allowed)(void *self, int32_t token);
  /* The text of the last -1, valid until the next call. Never null. */
  const char *(*error)(void *self);
  void (*destroy)(void *self);

  /* The functions from here on may be null. */

  /* Pushes `byte` if it is allowed, in one call: 1, 0 or -1. */
  int (*try_push_byte)(void *self, uint8_t byte);
  /* The bytes up to here belong to a token that was taken: no more than the state on top has to be kept, 0 or -1. With
   * it, taking a token back means a new recogniser and all bytes again; without it, tokens are popped. */
  int (*collapse)(void *self);
  /* A mask is done, and the stack as it was before: 0 or -1. */
  int (*trie_finished)(void *self);
  /* An independent recogniser in the same state, or null. Without it, a new one is made and gets all bytes. */
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
