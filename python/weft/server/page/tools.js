// The chat's tools: their definitions, which are checked while the user types, and the cards that show calls.

import { $, make } from './dom.js'

const WEATHER = `[{"type": "function", "function": {
  "name": "get_weather",
  "description": "The weather of a city now.",
  "parameters": {
    "type": "object",
    "properties": {
      "city": {"type": "string"},
      "unit": {"enum": ["celsius", "fahrenheit"]}
    },
    "required": ["city"],
    "additionalProperties": false
  }
}}]`

/** The request's part about tools: empty if there are none. Throws an `Error` if the text is not a list of tools. */
export function toolsNow() {
  const text = $('tools').value.trim()
  if (!text) return {}
  let tools
  try {
    tools = JSON.parse(text)
  } catch (error) {
    throw new Error(`the tools are not valid JSON: ${error.message}`)
  }
  const bad = Array.isArray(tools) ? tools.findIndex(tool => typeof tool?.function?.name !== 'string') : 0
  if (bad >= 0) {
    throw new Error(`${Array.isArray(tools) ? `tool ${bad + 1}` : 'the tools'}: write a list of {"type": "function", "function": {"name": …, "parameters": …}}`)
  }
  return tools.length ? { tools, tool_choice: $('tool-choice').value } : {}
}

export function setTools(text, choice = 'auto') {
  $('tools').value = text
  $('tool-choice').value = choice
  checkTools()
}

/** Show whether the tools can be sent. */
export function checkTools() {
  let names = [], problem = ''
  try {
    names = (toolsNow().tools ?? []).map(tool => tool.function.name)
  } catch (error) {
    problem = error.message
  }
  $('tools').setAttribute('aria-invalid', Boolean(problem))
  $('tools-verdict').className = problem ? 'bad' : 'good'
  $('tools-verdict').textContent = problem || (names.length ? `✓ ${names.join(', ')}` : '')
  $('tools-count').textContent = names.length || ''
}

/** A card for a tool call. With `onResult` it has a field for the result, which `onResult` gets as text. */
export function callCard({ function: { name, arguments: text } }, onResult) {
  const card = make('div', { class: 'call' }, make('p', { class: 'hint' }, 'Tool call'), make('pre', { dir: 'ltr' }, `${name}(${pretty(text)})`))
  if (!onResult) return card
  const result = make('textarea', { rows: 2, 'aria-label': `Result of ${name}`, placeholder: 'The result, as text or JSON' })
  const send = make('button', { type: 'button', class: 'chip', onclick: () => onResult(result.value) }, 'Send result')
  card.append(result, make('div', { class: 'row' }, send))
  return card
}

const MAX_LINE = 60

/** JSON on a line if it is short, else indented. */
function pretty(text) {
  try {
    const value = JSON.parse(text), line = JSON.stringify(value, null, 1).replace(/\n */g, ' ').replace(/^\{ | \}$/g, part => part.trim())
    return line.length > MAX_LINE ? JSON.stringify(value, null, 2) : line
  } catch {
    return text // the answer was cut inside the call
  }
}

export function connectTools(onChange) {
  $('tools').addEventListener('input', () => { checkTools(); onChange() })
  $('tool-choice').addEventListener('change', onChange)
  $('tools-example').addEventListener('click', () => { setTools(WEATHER); onChange() })
}
