#include "matcher/forced_text.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

namespace weft {
namespace {

constexpr std::int32_t kNoMerge = std::numeric_limits<std::int32_t>::max();
// `takes_longer` tries at most this many tokens. If there are more, it assumes that the grammar accepts one of them.
constexpr int kMaxTried = 64;

// The length in bytes of the UTF-8 character at the start of `text`; 1 for a byte that starts no character.
int character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const int length = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  return static_cast<std::size_t>(length) <= text.size() ? length : 1;
}

}  // namespace

TokenTexts::TokenTexts(const std::vector<std::string> &texts) {
  starts_.reserve(texts.size() + 1);
  for (const std::string &text : texts) {
    starts_.push_back(static_cast<std::uint32_t>(bytes_.size()));
    bytes_ += text;
    longest_ = std::max(longest_, text.size());
  }
  starts_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  std::size_t size = 16;
  while (size < 2 * texts.size()) size *= 2;
  table_.assign(size, -1);
  for (std::size_t token = 0; token < texts.size(); ++token)
    if (!texts[token].empty()) insert(static_cast<std::int32_t>(token));
  for (std::int32_t token : table_)
    if (token >= 0) sorted_.push_back(token);
  std::sort(sorted_.begin(), sorted_.end(),
            [this](std::int32_t left, std::int32_t right) { return text(left) < text(right); });
}

// Among tokens with the same text, the first is used. A single byte that occurs twice is the exception: in a
// sentencepiece vocabulary the first is the fallback byte and the second the character, which the model uses. Such a
// vocabulary merges characters, not bytes.
void TokenTexts::insert(std::int32_t token) {
  const std::string_view bytes = text(token);
  std::size_t at = std::hash<std::string_view>()(bytes) & (table_.size() - 1);
  while (table_[at] >= 0 && text(table_[at]) != bytes) at = (at + 1) & (table_.size() - 1);
  const bool again = table_[at] >= 0;
  if (again && bytes.size() == 1) spells_characters_ = true;
  if (!again || bytes.size() == 1) table_[at] = token;
}

std::string_view TokenTexts::text(std::int32_t token) const {
  const auto at = static_cast<std::size_t>(token);
  if (at + 1 >= starts_.size()) return {};
  return std::string_view(bytes_).substr(starts_[at], starts_[at + 1] - starts_[at]);
}

std::int32_t TokenTexts::find(std::string_view bytes) const {
  if (bytes.empty() || bytes.size() > longest_) return -1;
  std::size_t at = std::hash<std::string_view>()(bytes) & (table_.size() - 1);
  while (table_[at] >= 0 && text(table_[at]) != bytes) at = (at + 1) & (table_.size() - 1);
  return table_[at];
}

// In the sorted order these tokens directly follow `beginning` itself, so they form one range.
TokenTexts::Range TokenTexts::longer(std::string_view beginning) const {
  if (beginning.size() >= longest_) return {nullptr, nullptr};
  const auto is_before = [&](std::int32_t token) { return text(token) <= beginning; };
  const auto goes_on = [&](std::int32_t token) { return text(token).substr(0, beginning.size()) == beginning; };
  const auto first = std::partition_point(sorted_.begin(), sorted_.end(), is_before);
  const auto last = std::partition_point(first, sorted_.end(), goes_on);
  return {sorted_.data() + (first - sorted_.begin()), sorted_.data() + (last - sorted_.begin())};
}

int TokenTexts::encode(std::string_view text, std::int32_t *tokens) const {
  text = text.substr(0, kMaxBytes);
  int ends[kMaxBytes];
  const int count = first_units(text, tokens, ends);
  return count < 0 ? encode_longest(text, tokens) : merge(text, tokens, ends, count);
}

// Splits the text into the units that merging starts from, bytes or characters. Writes the token and the end offset of
// each. Returns their number, or -1 if a unit has no token.
int TokenTexts::first_units(std::string_view text, std::int32_t *tokens, int *ends) const {
  int count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    std::size_t length = spells_characters_ ? static_cast<std::size_t>(character_bytes(text.substr(at))) : 1;
    tokens[count] = find(text.substr(at, length));
    if (tokens[count] < 0 && length > 1) tokens[count] = find(text.substr(at, length = 1));
    if (tokens[count] < 0) return -1;
    at += length;
    ends[count] = static_cast<int>(at);
  }
  return count;
}

int TokenTexts::merge(std::string_view text, std::int32_t *tokens, int *ends, int count) const {
  std::int32_t merged[kMaxBytes];  // the token of units i and i + 1 together
  const auto look_up = [&](int i) {
    if (i < 0 || i + 1 >= count) return;
    const int begin = i == 0 ? 0 : ends[i - 1];
    const std::int32_t token =
        find(text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(ends[i + 1] - begin)));
    merged[i] = token < 0 ? kNoMerge : token;
  };
  for (int i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    const int at = static_cast<int>(std::min_element(merged, merged + count - 1) - merged);
    if (merged[at] == kNoMerge) break;
    tokens[at] = merged[at];
    ends[at] = ends[at + 1];
    std::copy(tokens + at + 2, tokens + count, tokens + at + 1);
    std::copy(ends + at + 2, ends + count, ends + at + 1);
    std::copy(merged + std::min(at + 2, count - 1), merged + count - 1, merged + at + 1);
    --count;
    look_up(at - 1);
    look_up(at);
  }
  return count;
}

int TokenTexts::encode_longest(std::string_view text, std::int32_t *tokens) const {
  int count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    std::size_t length = std::min(longest_, text.size() - at);
    while (length > 0 && (tokens[count] = find(text.substr(at, length))) < 0) --length;
    if (length == 0) break;
    at += length;
  }
  return count;
}

namespace {

// Whether the grammar accepts a token that begins with `rest` and is longer: 1 or 0; -1 if the matcher failed.
int takes_longer(weft_matcher matcher, const TokenTexts &vocabulary, std::string_view rest) {
  int tried = 0;
  for (std::int32_t token : vocabulary.longer(rest)) {
    if (++tried > kMaxTried) return 1;
    const int outcome = matcher.ops->accept(matcher.self, token);
    if (outcome < 0) return -1;
    if (outcome > 0) return matcher.ops->rollback(matcher.self, 1) == 0 ? 1 : -1;  // 2 accepts it, too
  }
  return 0;
}

}  // namespace

int forced_tokens(weft_matcher matcher, const TokenTexts &vocabulary, std::string_view text, std::int32_t *tokens,
                  int capacity) {
  std::int32_t spelled[TokenTexts::kMaxBytes];
  const bool is_cut = text.size() > TokenTexts::kMaxBytes;
  // Drop the last token of cut text: together with the rest of the text it might be tokenized differently.
  const int count = vocabulary.encode(text, spelled) - (is_cut ? 1 : 0);
  int taken = 0, accepted = 0, outcome = 1;
  while (taken < std::min(count, capacity)) {
    const std::int32_t token = spelled[taken];
    if (!is_cut && (outcome = takes_longer(matcher, vocabulary, text)) != 0) break;
    if ((outcome = matcher.ops->accept(matcher.self, token)) <= 0) break;
    ++accepted;
    if (outcome == 2) break;  // the matcher edits the text after this token, so it is not what follows
    text.remove_prefix(vocabulary.text(token).size());
    tokens[taken++] = token;
  }
  const int undone = accepted > 0 ? matcher.ops->rollback(matcher.self, accepted) : 0;
  return outcome < 0 || undone < 0 ? -1 : taken;
}

}  // namespace weft
