// Tokenizing forced text, over random vocabularies. Sanitizers check the bounds.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "matcher/forced_text.h"

namespace {

using weft::TokenTexts;

// A matcher that accepts tokens as long as they spell a prefix of one of `texts`.
struct Speller {
  const TokenTexts *vocabulary;
  std::vector<std::string> texts;
  std::vector<std::int32_t> taken;
  std::size_t edit_after = 1000;  // from this number of accepted tokens on, `accept` asks for an edit
  std::string written() const {
    std::string all;
    for (std::int32_t token : taken) all += vocabulary->text(token);
    return all;
  }
  bool allows(const std::string &beginning) const {
    for (const std::string &text : texts)
      if (text.compare(0, beginning.size(), beginning) == 0 && beginning.size() <= text.size()) return true;
    return false;
  }
  // Returns the only text that can follow the accepted tokens, up to the first choice or end.
  std::string jump() const {
    std::string longest = written();
    const std::size_t from = longest.size();
    for (bool grows = true; grows;) {
      std::vector<std::string> next;
      for (int byte = 0; byte < 256; ++byte)
        if (allows(longest + static_cast<char>(byte))) next.push_back(longest + static_cast<char>(byte));
      bool ends = false;
      for (const std::string &text : texts) ends = ends || text == longest;
      grows = next.size() == 1 && !ends;
      if (grows) longest = next[0];
    }
    return longest.substr(from);
  }
};
Speller &speller(void *self) { return *static_cast<Speller *>(self); }
int spell_accept(void *self, std::int32_t token) {
  Speller &matcher = speller(self);
  if (!matcher.allows(matcher.written() + std::string(matcher.vocabulary->text(token)))) return 0;
  matcher.taken.push_back(token);
  return matcher.taken.size() >= matcher.edit_after ? 2 : 1;
}
int spell_rollback(void *self, int count) {
  speller(self).taken.resize(speller(self).taken.size() - static_cast<std::size_t>(count));
  return 0;
}
weft_matcher_ops spell_ops() {
  weft_matcher_ops ops{};
  ops.abi = WEFT_MATCHER_ABI;
  ops.accept = spell_accept;
  ops.rollback = spell_rollback;
  return ops;
}
const weft_matcher_ops kOps = spell_ops();

// Token 0 is special. Then come the letters, or only doubled letters if letters are to be missing, and random merges.
std::vector<std::string> random_vocabulary(std::mt19937 &random, int letters, bool has_letters) {
  std::vector<std::string> texts = {""};
  for (int i = 0; i < letters; ++i) texts.push_back(std::string(has_letters ? 1 : 2, static_cast<char>('a' + i)));
  for (int i = 0; i < 60; ++i) {
    std::string merged = texts[1 + random() % (texts.size() - 1)] + texts[1 + random() % (texts.size() - 1)];
    if (merged.size() <= 40) texts.push_back(std::move(merged));
  }
  return texts;
}
std::string random_text(std::mt19937 &random, int letters, std::size_t length) {
  std::string text;
  while (text.size() < length) text += static_cast<char>('a' + random() % letters);
  return text;
}

TEST_CASE("tokens spell the text") {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const bool has_letters = round % 4 != 0;
    const int letters = 1 + static_cast<int>(random() % 4);
    const TokenTexts vocabulary(random_vocabulary(random, letters, has_letters));
    const std::string text = random_text(random, letters, random() % 400);
    std::int32_t tokens[TokenTexts::kMaxBytes];
    const int count = vocabulary.encode(text, tokens);
    std::string spelled;
    for (int i = 0; i < count; ++i) spelled += vocabulary.text(tokens[i]);
    CHECK(text.compare(0, spelled.size(), spelled) == 0);
    if (has_letters) CHECK_EQ(spelled.size(), std::min<std::size_t>(text.size(), TokenTexts::kMaxBytes));
  }
}

TEST_CASE("what goes on is all that begins so") {
  std::mt19937 random(6);
  for (int round = 0; round < 50; ++round) {
    const std::vector<std::string> texts = random_vocabulary(random, 3, true);
    const TokenTexts vocabulary(texts);
    const std::string beginning = random_text(random, 3, random() % 4);
    std::size_t found = 0;
    for (std::int32_t token : vocabulary.longer(beginning)) {
      CHECK(vocabulary.text(token).size() > beginning.size());
      CHECK(vocabulary.text(token).compare(0, beginning.size(), beginning) == 0);
      ++found;
    }
    std::size_t expected = 0;
    for (std::size_t i = 0; i < texts.size(); ++i)
      expected += texts[i].size() > beginning.size() && texts[i].compare(0, beginning.size(), beginning) == 0 &&
                  vocabulary.find(texts[i]) == static_cast<std::int32_t>(i);
    CHECK(found == expected);
  }
}

TEST_CASE("forced tokens are taken and taken back") {
  std::mt19937 random(7);
  int forced = 0;
  for (int round = 0; round < 300; ++round) {
    const TokenTexts vocabulary(random_vocabulary(random, 3, true));
    const std::string shared = random_text(random, 3, random() % 300);
    Speller matcher{&vocabulary, {shared + random_text(random, 3, 5), shared + random_text(random, 3, 9)}, {}, 1000};
    const std::string text = matcher.jump();
    CHECK(text.size() >= shared.size());
    std::int32_t tokens[12];
    const int capacity = static_cast<int>(random() % 13);
    const int count = weft::forced_tokens({&kOps, &matcher}, vocabulary, text, tokens, capacity);
    CHECK(count >= 0);
    CHECK(count <= capacity);
    CHECK(matcher.taken.empty());
    for (int i = 0; i < count; ++i) CHECK(spell_accept(&matcher, tokens[i]) == 1);
    CHECK(text.compare(0, matcher.written().size(), matcher.written()) == 0);
    forced += count;
  }
  CHECK(forced > 300);
}

TEST_CASE("a token that asks for an edit is taken back and not forced") {
  std::mt19937 random(8);
  for (int round = 0; round < 100; ++round) {
    const TokenTexts vocabulary(random_vocabulary(random, 3, true));
    Speller matcher{&vocabulary, {random_text(random, 3, 200)}, {}, 1 + random() % 3};
    const std::string text = matcher.jump();
    std::int32_t tokens[12];
    const int count = weft::forced_tokens({&kOps, &matcher}, vocabulary, text, tokens, 12);
    CHECK(count == static_cast<int>(matcher.edit_after) - 1);
    CHECK(matcher.taken.empty());
  }
}

}  // namespace
