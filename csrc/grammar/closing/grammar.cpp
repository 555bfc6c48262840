#include "grammar/closing/grammar.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace weft {
namespace {

constexpr int kMaxPlaces = 1 << 18;
constexpr int kMaxPiece = 64;  // bytes; longer literal text is spelled piece by piece

}  // namespace

int ClosingGrammar::times(int count, int cost) {
  if (count <= 0) return 0;
  if (cost >= kNever) return kNever;
  return static_cast<int>(std::min<std::int64_t>(kNever, static_cast<std::int64_t>(count) * cost));
}

int ClosingGrammar::cost(int at, int count) const {
  const Place &here = place(at);
  if (here.kind != Place::kRule) return cost(at);
  return sum(times(here.min_times - count, rule_cost(here.target)), cost(at + 1));
}

ClosingGrammar::ClosingGrammar(const std::vector<Rule> &rules, std::shared_ptr<const TokenTexts> texts)
    : texts_(std::move(texts)) {
  if (rules.empty()) throw std::invalid_argument("the grammar has no rule");
  first_.resize(rules.size());
  for (std::size_t rule = 0; rule < rules.size(); ++rule) {
    for (const Alternative &alternative : rules[rule]) add(static_cast<int>(rule), alternative);
    if (places_.size() > kMaxPlaces)
      throw std::invalid_argument("the grammar has more than " + std::to_string(kMaxPlaces) + " places");
  }
  for (const Place &place : places_)
    if (place.kind == Place::kRule && (place.target < 0 || place.target >= num_rules()))
      throw std::invalid_argument("there is no rule " + std::to_string(place.target));
  find_costs();
  // A rule that may be empty costs nothing, so any number of its repetitions can be skipped.
  for (Place &place : places_)
    if (place.kind == Place::kRule && rule_cost(place.target) == 0) place.min_times = 0;
  check_recursion();
}

int ClosingGrammar::add_set(const std::bitset<256> &set) {
  // Adjacent places mostly share a few sets, so search from the end.
  for (std::size_t back = sets_.size(); back > 0 && sets_.size() - back < 512; --back)
    if (sets_[back - 1] == set) return static_cast<int>(back - 1);
  sets_.push_back(set);
  const char byte = easiest(set);
  bytes_.push_back(byte);
  has_byte_.push_back(set[static_cast<unsigned char>(byte)] && texts_->find({&byte, 1}) >= 0);
  return static_cast<int>(sets_.size() - 1);
}

void ClosingGrammar::add(int rule, const Alternative &alternative) {
  first_[static_cast<std::size_t>(rule)].push_back(num_places());
  for (const Element &element : alternative) {
    if (element.rule >= 0) {
      if (element.max_times == 0) continue;
      places_.push_back({Place::kRule, element.rule, element.min_times, element.max_times, false});
    } else if (element.bytes.empty()) {
      places_.push_back({Place::kByte, add_set(element.set), 1, 1, false});
    } else {
      for (const char byte : element.bytes) {
        std::bitset<256> set;
        set.set(static_cast<unsigned char>(byte));
        places_.push_back({Place::kByte, add_set(set), 1, 1, false});
      }
    }
  }
  if (!places_.empty() && places_.back().kind == Place::kRule &&
      first_[static_cast<std::size_t>(rule)].back() < num_places())
    places_.back().is_last = true;
  places_.push_back({Place::kEnd, rule, 1, 1, false});
}

// Chooses the byte to write for a set. Bytes that have a token come first: those of `kFirst`, then printable ASCII,
// then other bytes.
char ClosingGrammar::easiest(const std::bitset<256> &set) const {
  static constexpr std::string_view kFirst = "0a1Aeotnsi ";
  const auto fits = [&](char byte) { return set[static_cast<unsigned char>(byte)] && texts_->find({&byte, 1}) >= 0; };
  for (const char byte : kFirst)
    if (fits(byte)) return byte;
  for (int byte = 0x20; byte < 0x7F; ++byte)
    if (fits(static_cast<char>(byte))) return static_cast<char>(byte);
  for (int byte = 0; byte < 256; ++byte)
    if (fits(static_cast<char>(byte))) return static_cast<char>(byte);
  for (int byte = 0; byte < 256; ++byte)
    if (set[static_cast<std::size_t>(byte)]) return static_cast<char>(byte);
  return 0;
}

// Joins consecutive places before a byte to one text of at most kMaxPiece bytes, with the easiest byte of each set.
// Counts the tokens of this text as the tokenizer would; kNever if a byte has no token.
ClosingGrammar::Piece ClosingGrammar::piece(int at) const {
  Piece piece;
  piece.end = at;
  bool has_bytes = true;
  do {
    const auto set = static_cast<std::size_t>(place(piece.end).target);
    piece.text += bytes_[set];
    has_bytes = has_bytes && has_byte_[set];
    ++piece.end;
  } while (piece.text.size() < kMaxPiece && place(piece.end).kind == Place::kByte);
  if (!has_bytes) return piece;
  std::int32_t tokens[TokenTexts::kMaxBytes];
  piece.num_tokens = texts_->encode(piece.text, tokens);
  return piece;
}

// Finds all costs. Rules may refer to each other, so this repeats until no cost falls. A place's cost depends on later
// places of its alternative, so places are done from the last to the first.
void ClosingGrammar::find_costs() {
  const auto count = places_.size();
  pieces_.resize(count);
  for (std::size_t at = 0; at < count; ++at)
    if (places_[at].kind == Place::kByte) pieces_[at] = piece(static_cast<int>(at));
  cost_.assign(count, kNever);
  rule_cost_.assign(first_.size(), kNever);
  best_.assign(first_.size(), -1);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t at = count; at-- > 0;) {
      const Place &here = places_[at];
      if (here.kind == Place::kEnd)
        cost_[at] = 0;
      else if (here.kind == Place::kByte)
        cost_[at] = sum(pieces_[at].num_tokens, cost_[static_cast<std::size_t>(pieces_[at].end)]);
      else
        cost_[at] = cost(static_cast<int>(at), 0);
    }
    for (std::size_t rule = 0; rule < first_.size(); ++rule)
      for (const int first : first_[rule])
        if (cost(first) < rule_cost_[rule]) {
          rule_cost_[rule] = cost(first);
          best_[rule] = first;
          changed = true;
        }
  }
}

// Throws for left recursion: the chart would enter such a rule forever. Recursion through tail calls is allowed: they
// add no frame, so the chart visits the same places again and stops.
void ClosingGrammar::check_recursion() const {
  struct Edge {
    int rule;
    bool is_deeper;  // entering the rule adds a frame
  };
  std::vector<std::vector<Edge>> edges(first_.size());
  for (std::size_t rule = 0; rule < first_.size(); ++rule)
    for (int at : first_[rule])
      for (; place(at).kind == Place::kRule; ++at) {
        const Place &here = place(at);
        edges[rule].push_back({here.target, !(here.max_times == 1 && here.is_last)});
        if (here.min_times > 0 && rule_cost(here.target) > 0) break;
      }
  // Strongly connected components of the rules (Tarjan's algorithm, without recursion).
  const auto count = static_cast<int>(first_.size());
  std::vector<int> index(first_.size(), -1), low(first_.size(), 0), component(first_.size(), -1), stack;
  int next = 0, components = 0;
  for (int root = 0; root < count; ++root) {
    if (index[static_cast<std::size_t>(root)] >= 0) continue;
    std::vector<std::pair<int, std::size_t>> path{{root, 0}};
    while (!path.empty()) {
      const int rule = path.back().first;
      const auto r = static_cast<std::size_t>(rule);
      std::size_t &edge = path.back().second;
      if (edge == 0 && index[r] < 0) {
        index[r] = low[r] = next++;
        stack.push_back(rule);
      }
      if (edge < edges[r].size()) {
        const auto to = static_cast<std::size_t>(edges[r][edge++].rule);
        if (index[to] < 0)
          path.emplace_back(static_cast<int>(to), 0);
        else if (component[to] < 0)
          low[r] = std::min(low[r], index[to]);
        continue;
      }
      if (low[r] == index[r]) {
        int member;
        do {
          member = stack.back();
          stack.pop_back();
          component[static_cast<std::size_t>(member)] = components;
        } while (member != rule);
        ++components;
      }
      path.pop_back();
      if (!path.empty()) {
        const auto parent = static_cast<std::size_t>(path.back().first);
        low[parent] = std::min(low[parent], low[r]);
      }
    }
  }
  for (std::size_t rule = 0; rule < edges.size(); ++rule)
    for (const Edge &edge : edges[rule])
      if (edge.is_deeper && component[rule] == component[static_cast<std::size_t>(edge.rule)])
        throw std::invalid_argument("a rule of the grammar is left-recursive");
}

void ClosingGrammar::spell(int at, int count, std::string &text, std::vector<std::int32_t> &tokens) const {
  std::vector<std::pair<int, int>> left{{at, count}};
  std::int32_t spelled[TokenTexts::kMaxBytes];
  while (!left.empty()) {
    const auto [here, done] = left.back();
    left.pop_back();
    const Place &place = places_[static_cast<std::size_t>(here)];
    if (place.kind == Place::kEnd) continue;
    if (place.kind == Place::kRule) {
      left.emplace_back(here + 1, 0);
      for (int i = done; i < place.min_times; ++i) left.emplace_back(best_[static_cast<std::size_t>(place.target)], 0);
      continue;
    }
    const Piece &piece = pieces_[static_cast<std::size_t>(here)];
    const int num = texts_->encode(piece.text, spelled);
    tokens.insert(tokens.end(), spelled, spelled + num);
    text += piece.text;
    left.emplace_back(piece.end, 0);
  }
}

std::size_t ClosingGrammar::num_bytes() const {
  std::size_t total = places_.size() * (sizeof(Place) + sizeof(Piece) + sizeof(int)) + sets_.size() * 34;
  for (const Piece &piece : pieces_) total += piece.text.size() > 15 ? piece.text.size() : 0;
  return total;
}

}  // namespace weft
