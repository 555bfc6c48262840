// The guide: its kinds, its text, and the server's check of it while the user types.

import { $, checked, make, milliseconds } from './dom.js'
import { api } from './api.js'

const KINDS = {
  none: { label: 'None' },
  json_schema: { label: 'Schema', wide: 'JSON ', hint: '{"type": "object", "properties": {…}}' },
  regex: { label: 'Regex', hint: '[A-Z][a-z]+ [0-9]{1,3}' },
  lark: { label: 'Lark', hint: 'start: "yes" | "no"' },
  ebnf: { label: 'EBNF', hint: 'root ::= "yes" | "no"' },
  choice: { label: 'Choice', hint: 'one answer a line' },
  handle: { label: 'Named' },
}
const guideTexts = {} // the text of each kind of guide, kept while another kind is shown

/** The guide for the request body, or undefined. A schema is sent as text, so that the server reports the place of an error. */
export function guideNow() {
  const kind = checked('kind'), text = $('guide').value
  if (kind === 'handle') return { handle: $('handle').value }
  if (kind === 'none' || !text.trim()) return undefined
  return { [kind]: kind === 'choice' ? text.split('\n').filter(Boolean) : text }
}

// -- the check

const CHECK_AFTER_MS = 350
let checking = null, checkTimer = 0

export function showVerdict(text, kind = '') {
  $('verdict').textContent = text.replace(/\\n(?=  |error)/g, '\n') // a message that points at a place has several lines
  $('verdict').className = kind
  $('guide').setAttribute('aria-invalid', kind === 'bad')
}

export function checkSoon() {
  clearTimeout(checkTimer)
  checking?.abort()
  if (!guideNow()) return showVerdict('')
  checkTimer = setTimeout(checkGuide, CHECK_AFTER_MS)
}

/** Check the guide with a request for one token, and show the verdict. A newer check cancels this one. */
async function checkGuide() {
  const { signal } = checking = new AbortController()
  showVerdict('checking …')
  try {
    const body = { model: $('model').value, prompt: 'a', max_tokens: 1, max_drafts: 0, guide: guideNow() }
    const { weft } = await (await api('v1/completions', body, signal)).json()
    showVerdict([`✓ compiled ${weft.compile_s > 0.001 ? `in ${milliseconds(weft.compile_s)}` : 'before'}`, ...(weft.guide_notes ?? [])].join('\n'), 'good')
  } catch (error) {
    if (error.name === 'AbortError') return
    showVerdict(error.message, error.code === 'guide_error' ? 'bad' : '')
  }
}

export function showKind() {
  const kind = checked('kind')
  $('guide').hidden = kind === 'none' || kind === 'handle'
  $('handle').hidden = kind !== 'handle'
  $('guide').value = guideTexts[kind] ?? ''
  $('guide').placeholder = KINDS[kind].hint ?? ''
  checkSoon()
}

/** Keep the text that the user types, and check it. */
export function guideChanged() {
  guideTexts[checked('kind')] = $('guide').value
  checkSoon()
}

export function setGuide(kind, text) {
  guideTexts[kind] = text
  document.querySelector(`input[name=kind][value=${kind}]`).checked = true
  showKind()
}

/** Show the kinds of guides, the server's named ones only if there are any. */
export function showKinds(handles) {
  $('handle').replaceChildren(...handles.map(name => make('option', {}, name)))
  const kept = document.querySelector('input[name=kind]:checked')?.value ?? 'none'
  const offered = Object.entries(KINDS).filter(([kind]) => kind !== 'handle' || handles.length)
  $('kinds').replaceChildren($('kinds').firstElementChild, ...offered.map(([kind, { label, wide }]) => make('label', {},
    make('input', { type: 'radio', name: 'kind', value: kind, checked: kind === kept, onchange: showKind }),
    ...(wide ? [make('span', { class: 'wide' }, wide)] : []), label)))
  if (!document.querySelector('input[name=kind]:checked')) $('kinds').querySelector('input').checked = true
  showKind()
}
