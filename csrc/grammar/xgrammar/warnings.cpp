#include "grammar/xgrammar/warnings.h"

#include <iostream>
#include <mutex>

namespace weft {

bool is_xgrammar_warning(std::string_view text) {
  if (text.size() < 11 || text.front() != '[' || text[9] != ']') return false;
  const std::string_view line = text.substr(0, text.find('\n'));
  const auto file = line.find(".cc:");
  return file != std::string_view::npos && line.find(": Warning: ", file) != std::string_view::npos;
}

Hushed::int_type Hushed::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
  return out_->sputc(traits_type::to_char_type(character));
}

std::streamsize Hushed::xsputn(const char *text, std::streamsize size) {
  if (is_xgrammar_warning({text, static_cast<std::size_t>(size)})) return size;
  return out_->sputn(text, size);
}

int Hushed::sync() { return out_->pubsync(); }

void hush_xgrammar() {
  static std::once_flag once;
  // Never destroyed: std::cerr is flushed after everything else.
  std::call_once(once, [] { std::cerr.rdbuf(new Hushed(std::cerr.rdbuf())); });
}

}  // namespace weft
