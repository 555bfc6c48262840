#include "guided/answers.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace weft {

Answers::Answers(const GuidedState &state)
    : state_(state),
      max_drafts_(state.shape().max_drafts),
      answers_(static_cast<std::size_t>(state.shape().num_slots)) {}

void Answers::open(int slot, EndRules rules, bool is_guided, std::int64_t resumed_at,
                   const std::vector<std::int32_t> &tokens) {
  if (rules.text_words && !rules.texts) throw std::invalid_argument("stop words that are texts need the tokens' texts");
  Answer &answer = answers_.at(static_cast<std::size_t>(slot));
  std::sort(rules.ends.begin(), rules.ends.end());
  answer = {std::move(rules), is_guided, resumed_at, static_cast<std::int64_t>(tokens.size()), 0, 0};
  if (!answer.rules.token_words && !answer.rules.text_words) return;
  for (const std::int64_t token : tokens) follow(answer, &token, 1);
}

bool Answers::follow(Answer &answer, const std::int64_t *tokens, int count) {
  bool is_clear = true;
  for (int i = 0; i < count; ++i) {
    const auto token = static_cast<std::int32_t>(tokens[i]);
    if (const WordAutomaton *words = answer.rules.token_words.get()) {
      answer.token_state = words->next(answer.token_state, static_cast<WordAutomaton::Symbol>(token));
      is_clear &= words->first_word(answer.token_state) < 0;
    }
    if (const WordAutomaton *words = answer.rules.text_words.get()) {
      const std::string_view text = answer.rules.texts->text(token);
      is_clear &= !text.empty();
      for (const char byte : text) {
        answer.text_state = words->next(answer.text_state, static_cast<unsigned char>(byte));
        is_clear &= words->first_word(answer.text_state) < 0;
      }
    }
  }
  return is_clear;
}

int Answers::take(int slot, const std::int64_t *row, bool has_later) {
  Answer &answer = answers_[static_cast<std::size_t>(slot)];
  const EndRules &rules = answer.rules;
  if (row[0] < 0 || row[0] > max_drafts_) return 0;
  const int count = static_cast<int>(row[0]) + 1;
  const std::int64_t num_tokens = answer.num_tokens + count, *tokens = row + 1;
  if (num_tokens >= rules.max_tokens) return 0;
  for (int i = 0; i < count; ++i)
    if (tokens[i] < 0 || std::binary_search(rules.ends.begin(), rules.ends.end(), tokens[i])) return 0;
  if (answer.is_guided) {
    if (state_.num_failed()) return 0;
    const std::int64_t num_later = state_.committed(slot) + answer.resumed_at - num_tokens;
    if (num_later < 0 || (num_later > 0 && !has_later)) return 0;
  }
  if (rules.token_words || rules.text_words) {
    const std::int32_t token_state = answer.token_state, text_state = answer.text_state;
    if (!follow(answer, tokens, count)) {
      answer.token_state = token_state, answer.text_state = text_state;
      return 0;
    }
  }
  answer.num_tokens = num_tokens;
  return count;
}

}  // namespace weft
