// weft's own declarations of the structs and functions of LLGuidance's C interface that it calls.
//
// They are resolved with dlsym from the installed wheel, so a build does not need LLGuidance. This is version 1.9 of
// the interface; `grammar/llguidance/library.cpp` checks the version before it trusts a layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::llg {

struct Tokenizer;
struct Matcher;

struct ParserLimits {
  std::size_t max_items_in_row;
  std::uint64_t initial_lexer_fuel;
  std::uint64_t step_lexer_fuel;
  std::size_t step_max_items;
  std::size_t max_lexer_states;
  std::size_t max_grammar_size;
  bool precompute_large_lexemes;
  bool verbose_errors;
};

struct ConstraintInit {
  const Tokenizer *tokenizer;
  std::uint32_t log_buffer_level;
  std::uint32_t log_stderr_level;
  bool ff_tokens_ok;
  bool backtrack_ok;
  ParserLimits limits;
};

using TokenizeFn = std::size_t (*)(const void *user_data, const std::uint8_t *bytes, std::size_t bytes_len,
                                   std::uint32_t *output, std::size_t output_len);

struct TokenizerInit {
  std::size_t struct_size;
  std::uint32_t vocab_size;
  std::uint32_t tok_eos;
  const std::uint32_t *token_lens;
  const std::uint8_t *token_bytes;
  const char *tokenizer_json;
  bool tokenize_assumes_string;
  TokenizeFn tokenize_fn;
  bool use_approximate_greedy_tokenize_fn;
  const void *tokenize_user_data;
  const char *const *slices;
  const std::uint32_t *tok_eos_extra;
  std::uint32_t tok_eos_extra_count;
};

struct Api {
  const char *(*get_version)();
  Tokenizer *(*new_tokenizer)(const TokenizerInit *init, char *error, std::size_t error_len);
  void (*free_tokenizer)(Tokenizer *tokenizer);
  void (*init_defaults)(ConstraintInit *init, const Tokenizer *tokenizer);
  Matcher *(*new_matcher)(const ConstraintInit *init, const char *type, const char *data);
  Matcher *(*clone_matcher)(const Matcher *matcher);
  void (*free_matcher)(Matcher *matcher);
  const char *(*get_error)(Matcher *matcher);
  std::int32_t (*compute_mask)(Matcher *matcher);
  const std::uint32_t *(*get_mask)(Matcher *matcher);
  std::int32_t (*validate_tokens)(Matcher *matcher, const std::uint32_t *tokens, std::size_t count);
  std::int32_t (*consume_token)(Matcher *matcher, std::uint32_t token);
  std::int32_t (*rollback)(Matcher *matcher, std::size_t count);
  bool (*is_accepting)(Matcher *matcher);
};

}  // namespace weft::llg
