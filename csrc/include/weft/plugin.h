/* A plug-in is a shared library that makes matchers or recognisers. It exports one symbol,
 *
 *   const weft_plugin_ops weft_plugin = {WEFT_PLUGIN_ABI, open, matcher, recognizer, close};
 *
 * Guide.plugin(path, arg) loads it. It is never unloaded. The interface is plain C. */
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

/* The vocabulary. Token t has the bytes text[starts[t]] up to, but not including, text[starts[t + 1]]; special and
 * unused tokens have none. Valid until `close`. */
typedef struct weft_vocabulary {
  int32_t size; /* bits of a mask row */
  const char *text;
  const uint32_t *starts; /* [size + 1] */
  const int32_t *end_tokens;
  int32_t num_end_tokens;
} weft_vocabulary;

typedef struct weft_plugin_ops {
  uint32_t abi; /* WEFT_PLUGIN_ABI */
  /* Prepares a guide from `arg`, which all requests with this `arg` share. Returns null on failure, with the reason in
   * `error`. Several threads may call any of these functions at the same time. */
  void *(*open)(const weft_vocabulary *vocabulary, const void *arg, size_t arg_size, char *error, size_t error_size);
  /* Makes a matcher or a recogniser at its start, for one request. One of these two is null. Returns 0, or -1 with the
   * reason in `error`. */
  int (*matcher)(void *guide, weft_matcher *made, char *error, size_t error_size);
  int (*recognizer)(void *guide, weft_recognizer *made, char *error, size_t error_size);
  /* Called when the guide and all its matchers or recognisers are no longer in use. */
  void (*close)(void *guide);
} weft_plugin_ops;

#ifdef __cplusplus
}
#endif
#endif
