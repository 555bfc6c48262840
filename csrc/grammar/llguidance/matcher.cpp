#include "grammar/llguidance/matcher.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "grammar/llguidance/start.h"
#include "matcher/no_throw.h"

namespace weft {

using llg::api;
using llg::Handle;
using llg::tidy;

namespace {

// A matcher that reaches the limit on lexer states after fewer masks than this needs too many states by itself, so a
// restart would not help.
constexpr int kMinMasksToRestart = 256;

// The search for forced text looks this many bytes ahead for each requested token.
constexpr std::size_t kForcedBytesPerToken = 16;

// A matcher of LLGuidance. weft handles end tokens itself: LLGuidance never sees one, so its behaviour after an end
// does not matter. A refused token breaks an LLGuidance matcher for good, so each token is validated before it is
// consumed.
//
// LLGuidance caches its last mask by the lexer's state and the number of parsed lexemes. A rollback does not drop the
// cache, so another path of the same shape would get the mask of the path that was rolled back. So before the next
// token is consumed after such a rollback, a new mask replaces the cached one (`is_stale`).
struct LlguidanceMatcher {
  std::shared_ptr<const LlguidanceVocabulary> vocabulary;
  std::shared_ptr<LlguidanceStart> start;
  Handle owned;
  LexerWork work;
  bool is_warm;  // it started with lexer states of earlier matchers
  llg::Matcher *handle = owned.get();
  std::vector<std::uint32_t> taken{};  // without an end token
  bool ended = false;
  std::size_t masked = 0;     // the number of tokens taken when the last mask was filled
  bool is_stale = false;      // the cached mask is for a text that was rolled back
  bool is_restarted = false;  // it was restarted at least once
  int masks = 0;              // filled since it started
  std::string error{};

  // Passes its lexer states on to later matchers if they are wanted, unless it failed or was restarted.
  ~LlguidanceMatcher() {
    if (is_restarted || !error.empty() || !start->wants(work)) return;
    if (!taken.empty() && api.rollback(handle, taken.size()) != 0) return;
    if (api.compute_mask(handle) != 0) return;  // replaces the cached mask
    start->take(std::move(owned), work);
  }

  // Restarts without lexer states after a failed call: a fresh matcher consumes the tokens again, without the masks
  // between them. A lexer's number of states is limited. A text must not fail because of states from other texts, or
  // states that only its beginning needed. A matcher that started without states and filled few masks needs its states
  // itself, so a restart would not help. Returns whether it restarted.
  bool restart() {
    if (!is_warm && masks < kMinMasksToRestart) return false;
    Handle fresh = start->cold();
    for (const std::uint32_t token : taken)
      if (api.consume_token(fresh.get(), token) != 0) return false;
    owned = std::move(fresh);
    handle = owned.get();
    is_warm = is_stale = false;
    is_restarted = true;
    masked = 0;
    masks = 0;
    return true;
  }

  int fail(const char *text) {
    error = text;
    return -1;
  }
  int fail() {
    error = tidy(api.get_error(handle));
    return -1;
  }
  bool is_end(std::int32_t token) const {
    const auto &ends = vocabulary->end_tokens();
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }
};

// Whether a mask was computed after the last token and allows `token`. Then `token` needs no validation.
bool mask_allows(LlguidanceMatcher &matcher, std::int32_t token) {
  const std::uint32_t *mask = api.get_mask(matcher.handle);
  return mask && (mask[token / 32] >> (token % 32) & 1u);
}

bool compute_mask(LlguidanceMatcher &matcher) {
  const auto start = std::chrono::steady_clock::now();
  if (api.compute_mask(matcher.handle) != 0 && !(matcher.restart() && api.compute_mask(matcher.handle) == 0))
    return false;
  matcher.work.time += std::chrono::steady_clock::now() - start;
  matcher.masked = matcher.taken.size();
  matcher.is_stale = false;
  ++matcher.work.masks;
  ++matcher.masks;
  return true;
}

std::int32_t validate_one(LlguidanceMatcher &matcher, std::uint32_t token) {
  const std::int32_t legal = api.validate_tokens(matcher.handle, &token, 1);
  return legal < 0 && matcher.restart() ? api.validate_tokens(matcher.handle, &token, 1) : legal;
}

bool consume(LlguidanceMatcher &matcher, std::uint32_t token) {
  if (api.consume_token(matcher.handle, token) != 0 &&
      !(matcher.restart() && api.consume_token(matcher.handle, token) == 0))
    return false;
  matcher.taken.push_back(token);
  return true;
}

int llg_accept(LlguidanceMatcher &matcher, std::int32_t token) {
  if (token < 0 || token >= matcher.vocabulary->size() || matcher.ended) return 0;
  if (matcher.is_end(token)) {
    matcher.ended = api.is_accepting(matcher.handle);
    return matcher.ended;
  }
  const auto id = static_cast<std::uint32_t>(token);
  if (!mask_allows(matcher, token)) {
    const std::int32_t legal = validate_one(matcher, id);
    if (legal < 0) return matcher.fail();
    if (legal == 0) return 0;
  }
  if (matcher.is_stale && !compute_mask(matcher)) return matcher.fail();
  return consume(matcher, id) ? 1 : matcher.fail();
}

int llg_rollback(LlguidanceMatcher &matcher, int count) {
  const int all = static_cast<int>(matcher.taken.size()) + matcher.ended;
  if (count < 0) return matcher.fail("can't roll back a negative number of tokens");
  if (count > all) {
    matcher.error = "rollback of " + std::to_string(count) + " tokens; only " + std::to_string(all) + " were taken";
    return -1;
  }
  // LLGuidance never received the end token, so it has one token less to roll back.
  const auto fed = static_cast<std::size_t>(count - (count > 0 && matcher.ended));
  if (fed > 0 && api.rollback(matcher.handle, fed) != 0) return matcher.fail();
  matcher.taken.resize(matcher.taken.size() - fed);
  matcher.is_stale = matcher.is_stale || matcher.taken.size() < matcher.masked;
  if (count > 0) matcher.ended = false;
  return 0;
}

int llg_validate(LlguidanceMatcher &matcher, const std::int32_t *tokens, int count) {
  int taken = 0, outcome = 1;
  while (taken < count && (outcome = llg_accept(matcher, tokens[taken])) == 1) ++taken;
  const int undone = llg_rollback(matcher, taken);
  return outcome < 0 || undone < 0 ? -1 : taken;
}

void set_bit(std::int32_t *row, std::int32_t token, bool allowed) {
  const std::uint32_t bit = 1u << (token % 32), word = static_cast<std::uint32_t>(row[token / 32]);
  row[token / 32] = static_cast<std::int32_t>(allowed ? word | bit : word & ~bit);
}

int llg_fill(LlguidanceMatcher &matcher, std::int32_t *row, int words) {
  const int needed = (matcher.vocabulary->size() + 31) / 32;
  if (words < needed) return matcher.fail("the mask row is shorter than the vocabulary");
  if (matcher.ended) {
    std::memset(row, 0, static_cast<std::size_t>(words) * sizeof *row);
    for (std::int32_t token : matcher.vocabulary->end_tokens()) set_bit(row, token, true);
    return 1;
  }
  if (!compute_mask(matcher)) return matcher.fail();
  std::memcpy(row, api.get_mask(matcher.handle), static_cast<std::size_t>(needed) * sizeof *row);
  std::memset(row + needed, 0, static_cast<std::size_t>(words - needed) * sizeof *row);
  // End tokens are allowed exactly where the grammar may end. LLGuidance may say otherwise: a Lark grammar can name an
  // end token by its number.
  const bool accepting = api.is_accepting(matcher.handle);
  for (std::int32_t token : matcher.vocabulary->end_tokens()) set_bit(row, token, accepting);
  return 1;
}

void *llg_fork(LlguidanceMatcher &matcher) {
  Handle copy(api.clone_matcher(matcher.handle));
  if (!copy) return matcher.fail("llguidance made no copy of a matcher"), nullptr;
  std::unique_ptr<LlguidanceMatcher> fork(
      new LlguidanceMatcher{matcher.vocabulary, matcher.start, std::move(copy), matcher.work, matcher.is_warm});
  fork->taken = matcher.taken;
  fork->ended = matcher.ended;
  fork->masked = matcher.masked;
  fork->is_stale = matcher.is_stale;
  fork->is_restarted = matcher.is_restarted;
  fork->masks = matcher.masks;
  return fork.release();
}

int llg_reset(LlguidanceMatcher &matcher) {
  return llg_rollback(matcher, static_cast<int>(matcher.taken.size()) + matcher.ended);
}

// Returns the byte that all allowed tokens begin with, or -1.
int common_byte(const std::vector<std::int32_t> &row, const TokenTexts &texts) {
  int byte = -1;
  for (std::size_t word = 0; word < row.size(); ++word) {
    for (auto bits = static_cast<std::uint32_t>(row[word]); bits != 0; bits &= bits - 1) {
      const std::string_view text = texts.text(static_cast<std::int32_t>(word * 32) + __builtin_ctz(bits));
      if (text.empty() || (byte >= 0 && byte != static_cast<unsigned char>(text[0]))) return -1;
      byte = static_cast<unsigned char>(text[0]);
    }
  }
  return byte;
}

extern const weft_matcher_ops kOps;

// LLGuidance finds forced text only if it considers the tokenizer canonical, and then its masks allow only its own
// tokenization. So the forced bytes are found here, with one mask for each byte.
int llg_forced(LlguidanceMatcher &matcher, std::int32_t *tokens, int capacity) {
  if (capacity < 1 || matcher.ended) return 0;
  const TokenTexts &texts = matcher.vocabulary->spelling();
  const std::size_t longest =
      std::min<std::size_t>(TokenTexts::kMaxBytes, static_cast<std::size_t>(capacity) * kForcedBytesPerToken);
  std::vector<std::int32_t> row(static_cast<std::size_t>((matcher.vocabulary->size() + 31) / 32));
  std::string text;
  int outcome = 1;
  while (text.size() < longest && (outcome = llg_fill(matcher, row.data(), static_cast<int>(row.size()))) >= 0) {
    const int byte = common_byte(row, texts);
    if (byte < 0) break;
    const char next = static_cast<char>(byte);
    outcome = llg_accept(matcher, texts.find({&next, 1}));
    if (outcome != 1) break;
    text.push_back(next);
  }
  const int undone = llg_rollback(matcher, static_cast<int>(text.size()));
  if (outcome < 0 || undone < 0) return -1;
  return forced_tokens({&kOps, &matcher}, texts, text, tokens, capacity);
}

int llg_is_terminated(LlguidanceMatcher &matcher) { return matcher.ended; }

const char *llg_error(LlguidanceMatcher &matcher) { return matcher.error.c_str(); }

void llg_destroy(LlguidanceMatcher &matcher) { delete &matcher; }

const weft_matcher_ops kOps = {WEFT_MATCHER_ABI,
                               guarded<llg_accept>,
                               guarded<llg_validate>,
                               guarded<llg_fill>,
                               guarded<llg_rollback>,
                               guarded<llg_fork>,
                               guarded<llg_reset>,
                               guarded<llg_forced>,
                               guarded<llg_is_terminated>,
                               guarded<llg_error>,
                               guarded<llg_destroy>,
                               nullptr,
                               nullptr};

}  // namespace

LlguidanceVocabulary::LlguidanceVocabulary(const std::vector<std::string> &texts, std::vector<std::int32_t> end_tokens,
                                           std::shared_ptr<const TokenTexts> spelling)
    : size_(static_cast<int>(texts.size())), end_tokens_(std::move(end_tokens)), spelling_(std::move(spelling)) {
  llg::need_binding();
  if (end_tokens_.empty()) throw LlguidanceRefusal("the vocabulary has no end token");
  std::vector<std::uint32_t> lengths;
  std::string bytes;
  for (const std::string &text : texts) {
    lengths.push_back(static_cast<std::uint32_t>(text.size()));
    bytes += text;
  }
  const std::vector<std::uint32_t> ends(end_tokens_.begin(), end_tokens_.end());
  llg::TokenizerInit init{};
  init.struct_size = sizeof init;
  init.vocab_size = static_cast<std::uint32_t>(size_);
  init.tok_eos = ends[0];
  init.token_lens = lengths.data();
  init.token_bytes = reinterpret_cast<const std::uint8_t *>(bytes.data());
  // With the approximate tokenize function LLGuidance does not consider the tokenizer canonical, so masks allow every
  // tokenization of a text.
  init.use_approximate_greedy_tokenize_fn = true;
  init.tok_eos_extra = ends.data() + 1;
  init.tok_eos_extra_count = static_cast<std::uint32_t>(ends.size() - 1);
  char error[1024] = "";
  tokenizer_ = api.new_tokenizer(&init, error, sizeof error);
  if (!tokenizer_) throw LlguidanceRefusal(tidy(error));
}

LlguidanceVocabulary::~LlguidanceVocabulary() { api.free_tokenizer(tokenizer_); }

LlguidanceGrammar::LlguidanceGrammar(std::shared_ptr<const LlguidanceVocabulary> vocabulary, const std::string &type,
                                     const std::string &text, const LlguidanceLimits &limits)
    : vocabulary_(std::move(vocabulary)) {
  llg::ConstraintInit init{};
  api.init_defaults(&init, vocabulary_->tokenizer());
  init.log_buffer_level = init.log_stderr_level = 0;
  const auto set = [](auto &field, auto value) {
    if (value != 0) field = value;
  };
  set(init.limits.max_items_in_row, limits.max_items_in_row);
  set(init.limits.step_max_items, limits.step_max_items);
  set(init.limits.max_lexer_states, limits.max_lexer_states);
  set(init.limits.max_grammar_size, limits.max_grammar_size);
  set(init.limits.initial_lexer_fuel, limits.initial_lexer_fuel);
  set(init.limits.step_lexer_fuel, limits.step_lexer_fuel);
  init.limits.verbose_errors = false;  // verbose errors would quote the grammar and the answer
  Handle start(api.new_matcher(&init, type.c_str(), text.c_str()));
  if (const char *error = api.get_error(start.get())) throw LlguidanceRefusal(tidy(error));
  start_ = std::make_shared<LlguidanceStart>(std::move(start), limits.keeps_states);
}

weft_matcher LlguidanceGrammar::matcher() {
  LlguidanceStart::Copy copy = start_->copy();
  return {&kOps, new LlguidanceMatcher{vocabulary_, start_, std::move(copy.handle), copy.work, copy.is_warm}};
}

}  // namespace weft
