/* A plug-in: a shared library that makes matchers or recognisers. It exports one symbol,
 *
 *   const weft_plugin_ops weft_plugin = {WEFT_PLUGIN_ABI, open, matcher, recognizer, close};
 *
 * and is loaded by Guide.plugin(path, arg). It is never unloaded. Plain C. */
#ifndef WEFT_PLUGIN_H
#define WEFT_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#include <weft/matcher.h>
#include <weft/recognizer.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_PLUGIN_ABI 1

/* The vocabulary: token t has the bytes text[starts[t]] to text[starts[t + 1]], none if it is special or not in use.
 * Valid until `close`. */
typedef struct weft_vocabulary {
  int32_t size; /* bits of a mask row */
  const char *text;
  const uint32_t *starts; /* [size + 1] */
  const int32_t *end_tokens;
  int32_t num_end_tokens;
} weft_vocabulary;

typedef struct weft_plugin_ops {
  uint32_t abi; /* WEFT_PLUGIN_ABI */
  /* Prepares a guide from `arg`, for all requests that have it. Null: it can't be, and `error` says why. May be called
   * by several threads at once, like all of these. */
  void *(*open)(const weft_vocabulary *vocabulary, const void *arg, size_t arg_size, char *error, size_t error_size);
  /* One of these two, the other null: a matcher or a recogniser at its start, for one request. 0, or -1 and `error`. */
  int (*matcher)(void *guide, weft_matcher *made, char *error, size_t error_size);
  int (*recognizer)(void *guide, weft_recognizer *made, char *error, size_t error_size);
  /* Called when the guide and everything made from it are no longer in use. */
  void (*close)(void *guide);
} weft_plugin_ops;

#ifdef __cplusplus
}
#endif
#endif
