// Markdown to elements: the part of CommonMark and GitHub's tables that models write.
//
// The text is a model's, so it is hostile. Every piece of it becomes a text node, no HTML is parsed, links lead only to
// http, https and mailto, and images become links. Nesting is limited, and time grows linearly with ordinary text.

import { copyText, make } from './dom.js'

const MAX_DEPTH = 8 // of lists in quotes in lists; deeper levels stay text
const MAX_INLINE = 20_000 // characters of a paragraph: a longer one stays text

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$/
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/
const QUOTE = /^ {0,3}> ?/
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/
const BLANK = /^[ \t]*$/

/** An element that shows Markdown, and follows a text that grows. Blocks that did not change keep their elements. */
export class Prose {
  constructor() {
    this.element = make('div', { class: 'prose', dir: 'auto' })
    this.sources = []
  }

  show(text) {
    const blocks = split(text.replaceAll('\r\n', '\n').split('\n'))
    const sources = blocks.map(block => block.lines.join('\n'))
    const kept = sources.findIndex((source, place) => source !== this.sources[place])
    const begin = kept < 0 ? sources.length : kept
    while (this.element.children.length > begin) this.element.lastChild.remove()
    this.element.append(...blocks.slice(begin).map(block => element(block, 0)))
    this.sources = sources
  }
}

// -- blocks: each has a kind and its lines

/** Split lines into blocks. Only the last block can change when text is appended. */
function split(lines) {
  const blocks = []
  for (let at = 0; at < lines.length;) {
    if (BLANK.test(lines[at])) { at++; continue }
    const kind = kindAt(lines, at), end = ENDS[kind](lines, at)
    blocks.push({ kind, lines: lines.slice(at, end) })
    at = end
  }
  return blocks
}

function kindAt(lines, at) {
  const line = lines[at]
  if (FENCE.test(line)) return 'code'
  if (HEADING.test(line)) return 'heading'
  if (RULE.test(line)) return 'rule'
  if (QUOTE.test(line)) return 'quote'
  if (ITEM.test(line)) return 'list'
  if (line.includes('|') && DELIMITERS.test(lines[at + 1] ?? '') && cells(line).length === cells(lines[at + 1]).length) return 'table'
  return 'paragraph'
}

const oneLine = (lines, at) => at + 1

/** The number of the first line from `at` on that fulfils a condition, or the number of lines. */
function next(lines, at, condition) {
  while (at < lines.length && !condition(lines[at])) at++
  return at
}

function until(ends) {
  return (lines, at) => {
    let end = at + 1
    while (end < lines.length && !ends(lines, end, at)) end++
    return end
  }
}

/** For each kind of block, a function from lines and the number of its first line to the number after its last. */
const ENDS = {
  heading: oneLine,
  rule: oneLine,
  code(lines, at) {
    const [, fence] = FENCE.exec(lines[at])
    const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}[ \\t]*$`)
    const end = next(lines, at + 1, line => closing.test(line))
    return Math.min(end + 1, lines.length) // a fence that is still open reaches to the end: the answer is being written
  },
  quote: until((lines, end) => !QUOTE.test(lines[end])),
  list: until((lines, end, at) => {
    const line = lines[end], [, indent] = ITEM.exec(lines[at])
    if (BLANK.test(line)) { // the list goes on if another item or an indented line follows
      const follower = lines[next(lines, end, later => !BLANK.test(later))]
      return follower === undefined || !(isItem(follower, lines[at]) || indentOf(follower) > indent.length + 1)
    }
    if (indentOf(line) > indent.length + 1) return false
    return ITEM.test(line) ? !isItem(line, lines[at]) : BLANK.test(lines[end - 1]) || kindAt(lines, end) !== 'paragraph'
  }),
  table: until((lines, end) => BLANK.test(lines[end]) || !lines[end].includes('|')),
  paragraph: until((lines, end) => BLANK.test(lines[end]) || kindAt(lines, end) !== 'paragraph'),
}

const indentOf = line => line.length - line.trimStart().length
const isNumbered = line => /\d/.test(ITEM.exec(line)[2])
/** Whether a line is an item of the list that begins with `first`: bullets and numbers make different lists. */
const isItem = (line, first) => ITEM.test(line) && !RULE.test(line) && isNumbered(line) === isNumbered(first)

function element({ kind, lines }, depth) {
  return depth > MAX_DEPTH ? make('p', {}, lines.join('\n')) : ELEMENTS[kind](lines, depth)
}

const inner = (lines, depth) => split(lines).map(block => element(block, depth + 1))

const ELEMENTS = {
  paragraph: lines => make('p', {}, ...inline(lines.map(line => line.trim()).join('\n'))),
  heading(lines) {
    const [, marks, text] = HEADING.exec(lines[0])
    return make(`h${Math.min(marks.length + 2, 6)}`, {}, ...inline(text)) // the page itself has h1 and h2
  },
  rule: () => make('hr'),
  code(lines) {
    const [, fence, language] = FENCE.exec(lines[0]), last = lines.at(-1).trim()
    const isClosed = lines.length > 1 && last.length >= fence.length && last === fence[0].repeat(last.length)
    const text = lines.slice(1, isClosed ? -1 : undefined).join('\n')
    const copy = make('button', { type: 'button', class: 'chip', onclick: () => copyText(text, copy) }, 'Copy')
    return make('div', { class: 'code' },
      make('div', { class: 'row' }, make('span', { class: 'hint' }, language.trim().split(/\s/)[0]), copy),
      make('pre', { tabindex: 0, dir: 'ltr' }, make('code', {}, text)))
  },
  quote: (lines, depth) => make('blockquote', {}, ...inner(lines.map(line => line.replace(QUOTE, '')), depth)),
  list(lines, depth) {
    const items = []
    for (const line of lines) {
      if (isItem(line, lines[0]) && (!items.length || indentOf(line) <= indentOf(lines[0]) + 1)) {
        const [mark] = ITEM.exec(line)
        items.push({ indent: mark.length, lines: [line.slice(mark.length)] })
      } else items.at(-1).lines.push(line.slice(Math.min(indentOf(line), items.at(-1).indent)))
    }
    const start = isNumbered(lines[0]) ? { start: parseInt(ITEM.exec(lines[0])[2], 10) } : {}
    return make(isNumbered(lines[0]) ? 'ol' : 'ul', start, ...items.map(item => make('li', {}, ...itemContent(item.lines, depth))))
  },
  table(lines) {
    const aligns = cells(lines[1]).map(cell => /^:.*:$/.test(cell) ? 'center' : cell.endsWith(':') ? 'right' : 'left')
    const row = (line, tag) => make('tr', {}, ...aligns.map((align, place) =>
      make(tag, { class: align }, ...inline(cells(line)[place] ?? ''))))
    const table = make('table', {}, make('thead', {}, row(lines[0], 'th')), make('tbody', {}, ...lines.slice(2).map(line => row(line, 'td'))))
    return make('div', { class: 'scroll', tabindex: 0 }, table)
  },
}

/** An item of one paragraph needs no paragraph of its own. */
function itemContent(lines, depth) {
  const blocks = split(lines)
  const [first, ...rest] = blocks.map(block => element(block, depth + 1))
  if (!first) return []
  return first.tagName === 'P' && !rest.some(block => block.tagName === 'P') ? [...first.childNodes, ...rest] : [first, ...rest]
}

const cells = line => line.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '').split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll('\\|', '|'))

// -- inline: code, emphasis, links, line breaks

// Alternatives in the order of precedence. A mark without its end is text. Emphasis with _ keeps to whole words. The
// bounds on lengths keep the time linear in hostile text.
const INLINE = new RegExp([
  /\\([!-/:-@[-`{-~])/, // 1: an escape
  /(`+)(?!`)([^]{0,2000}?[^`])\2(?!`)/, // 2, 3: code
  /!?\[([^\][\n]*(?:\[[^\][\n]*\][^\][\n]*)*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"\n]*")?\s*\)/, // 4, 5: a link
  /<?\b(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_])>?/, // 6: an address
  /(\*\*|(?<!\w)__)(?=\S)([^]{0,1000}?\S)\7(?:(?<=\*)(?!\*)|(?<=_)(?!\w))/, // 7, 8: bold
  /(\*|(?<!\w)_)(?=[^\s*_])([^]{0,1000}?[^\s*_])\9(?:(?<=\*)(?!\*)|(?<=_)(?!\w))/, // 9, 10: italic
  /~~(?=\S)([^]{0,1000}?\S)~~/, // 11: struck out
  /(\n)/, // 12: a line break
].map(part => part.source).join('|'), 'g')

function inline(text, depth = 0) {
  if (depth > MAX_DEPTH || text.length > MAX_INLINE) return [text]
  const nodes = []
  let end = 0
  for (const match of text.matchAll(INLINE)) {
    if (match.index > end) nodes.push(text.slice(end, match.index))
    nodes.push(inlineElement(match, depth + 1))
    end = match.index + match[0].length
  }
  if (end < text.length) nodes.push(text.slice(end))
  return nodes
}

function inlineElement(match, depth) {
  const [all, escaped, , code, label, target, address, , bold, , italic, struck, newline] = match
  if (escaped) return escaped
  if (code !== undefined) return make('code', {}, code.replace(/^ (.*\S.*) $/s, '$1').replaceAll('\n', ' '))
  if (label !== undefined) return link(target, label ? inline(label, depth) : [target], all)
  if (address) return link(address, [address], all)
  if (bold) return make('strong', {}, ...inline(bold, depth))
  if (italic) return make('em', {}, ...inline(italic, depth))
  if (struck) return make('del', {}, ...inline(struck, depth))
  if (newline) return make('br')
  return all
}

const SAFE = /^(https?:\/\/|mailto:)/i

/** A link, or its source text if it leads anywhere but to the web or to an address. */
function link(target, children, source) {
  if (!SAFE.test(target)) return source
  return make('a', { href: target, target: '_blank', rel: 'noopener noreferrer nofollow' }, ...children)
}
