/* AICI's interface (generation 2) for programs in C without a C library: what the host gives, and what a program needs
 * to read its input and to write its answer. docs/wasm.md explains it.
 *
 * A program exports four functions: aici_init, aici_create, aici_init_prompt and aici_mid_process. */
#ifndef AICI_H
#define AICI_H

typedef unsigned char u8;
typedef unsigned int u32;

#define AICI_IMPORT(name) __attribute__((import_module("env"), import_name(#name)))
#define AICI_EXPORT(name) __attribute__((export_name(#name)))

/* -- what the host gives. Data comes in numbered blobs: read_blob copies at most `size` bytes and returns how many
 * there are. */
AICI_IMPORT(aici_host_read_blob) u32 aici_host_read_blob(u32 blob, void *to, u32 size);
AICI_IMPORT(aici_host_token_trie) u32 aici_host_token_trie(void);                   /* the vocabulary */
AICI_IMPORT(aici_host_module_arg) u32 aici_host_module_arg(void);                   /* the program's argument */
AICI_IMPORT(aici_host_process_arg) u32 aici_host_process_arg(void);                 /* this call's argument, JSON */
AICI_IMPORT(aici_host_tokenize) u32 aici_host_tokenize(const void *text, u32 size); /* a blob of u32 */
AICI_IMPORT(aici_host_storage_cmd) u32 aici_host_storage_cmd(const void *json, u32 size);
AICI_IMPORT(aici_host_return_logit_bias) u32 aici_host_return_logit_bias(const u32 *mask); /* its ticket */
AICI_IMPORT(aici_host_return_process_result) void aici_host_return_process_result(const void *json, u32 size);
AICI_IMPORT(aici_host_self_seq_id) u32 aici_host_self_seq_id(void);
AICI_IMPORT(aici_host_eos_token) u32 aici_host_eos_token(void);
AICI_IMPORT(aici_host_get_config) u32 aici_host_get_config(const char *name, u32 size);
AICI_IMPORT(aici_host_stop) void aici_host_stop(void);

/* -- memory: taken, never given back */
extern u8 __heap_base;
static u8 *aici_heap_top = &__heap_base;

static inline void *aici_take(u32 size) {
  u8 *taken = aici_heap_top;
  aici_heap_top += (size + 15) & ~15u;
  u32 pages = ((u32)aici_heap_top + 65535) / 65536, have = __builtin_wasm_memory_size(0);
  if (pages > have && __builtin_wasm_memory_grow(0, pages - have) == (unsigned long)-1) __builtin_trap();
  return taken;
}

/* A blob, with a zero after it. */
static inline u8 *aici_blob(u32 blob, u32 *size) {
  *size = aici_host_read_blob(blob, 0, 0);
  u8 *taken = aici_take(*size + 1);
  aici_host_read_blob(blob, taken, *size);
  taken[*size] = 0;
  return taken;
}

/* -- the vocabulary: the bytes of each token; special tokens have none */
static u32 aici_vocab_size, *aici_offsets;
static u8 *aici_token_bytes;

static inline void aici_read_vocabulary(void) {
  u32 size, *header = (u32 *)aici_blob(aici_host_token_trie(), &size);
  u8 *nodes = (u8 *)header + header[1];
  aici_vocab_size = header[5];
  aici_offsets = (u32 *)(nodes + header[2]);
  aici_token_bytes = (u8 *)aici_offsets + header[3];
}

static inline const u8 *aici_token(u32 token, u32 *length) {
  *length = aici_offsets[token] & 1023;
  return aici_token_bytes + (aici_offsets[token] >> 10);
}

/* -- a set of tokens: as many bits as the vocabulary has tokens */
static u32 *aici_mask;

static inline void aici_clear(void) {
  u32 words = (aici_vocab_size + 31) / 32;
  if (!aici_mask) aici_mask = aici_take(4 * words);
  for (u32 i = 0; i < words; i++) aici_mask[i] = 0;
}
static inline void aici_allow(u32 token) { aici_mask[token / 32] |= 1u << (token % 32); }

/* -- answers */
static char aici_json[1 << 16];
static u32 aici_length;

static inline void aici_text(const char *text) {
  while (*text && aici_length < sizeof aici_json) aici_json[aici_length++] = *text++;
}
static inline void aici_number(u32 number) {
  char digits[11];
  u32 i = 10;
  digits[i] = 0;
  do digits[--i] = (char)('0' + number % 10);
  while (number /= 10);
  aici_text(digits + i);
}
static inline void aici_send(void) {
  aici_host_return_process_result(aici_json, aici_length);
  aici_length = 0;
}

/* To aici_init_prompt: the prompt stays as it is. */
static inline void aici_keep_prompt(void) {
  u32 size;
  u8 *argument = aici_blob(aici_host_process_arg(), &size);
  aici_host_return_process_result(argument, size);
  aici_heap_top = argument;
}
/* To aici_mid_process: one of the tokens of the mask comes next. */
static inline void aici_sample(void) {
  aici_text("{\"branches\":[{\"sample_mask\":");
  aici_number(aici_host_return_logit_bias(aici_mask));
  aici_text(",\"temperature\":null,\"splices\":[]}]}");
  aici_send();
}
/* To aici_mid_process: these tokens come next, without sampling; the call after the last has them all. */
static inline void aici_append(const u32 *tokens, u32 count) {
  aici_text(
      "{\"branches\":[{\"sample_mask\":null,\"temperature\":null,\"splices\":[{\"when_sampled\":[],"
      "\"backtrack\":0,\"ff_tokens\":[");
  for (u32 i = 0; i < count; i++) {
    if (i) aici_text(",");
    aici_number(tokens[i]);
  }
  aici_text("]}]}]}");
  aici_send();
}
/* To aici_mid_process: the answer ends. */
static inline void aici_stop(void) {
  aici_text("{\"branches\":[]}");
  aici_send();
}

/* The tokens since the call before: their number; `tokens` has room for `capacity`. */
static inline u32 aici_new_tokens(u32 *tokens, u32 capacity) {
  u32 size, count = 0;
  u8 *json = aici_blob(aici_host_process_arg(), &size), *at = json;
  aici_heap_top = json;
  while (*at && !(at[0] == '"' && at[1] == 't' && at[2] == 'o' && at[3] == 'k')) at++;
  while (*at && *at != '[') at++;
  while (*at && *at != ']') {
    if (*at >= '0' && *at <= '9') {
      u32 token = 0;
      while (*at >= '0' && *at <= '9') token = token * 10 + (*at++ - '0');
      if (count < capacity) tokens[count] = token;
      count++;
    } else {
      at++;
    }
  }
  return count < capacity ? count : capacity;
}

#endif
