// The page's request as code: for curl, and for OpenAI's Python client.

import { $, checked, number } from './dom.js'
import { messagesNow } from './chat.js'
import { request } from './request.js'

// The arguments of OpenAI's client, in the order of the code. It takes other fields, which are weft's, in extra_body.
const ARGUMENTS = ['model', 'messages', 'prompt', 'tools', 'tool_choice', 'temperature', 'max_tokens', 'seed']
const place = name => ARGUMENTS.includes(name) ? ARGUMENTS.indexOf(name) : ARGUMENTS.length

/** The request, without the fields that only the page needs. */
function bodyNow() {
  const { path, body } = request({ model: $('model').value, drafts: number('drafts'), messages: messagesNow() })
  const { stream, stream_options, logprobs, top_logprobs, token_details, ...fields } = body
  if (fields.max_drafts === Number($('drafts').max) || $('drafts').disabled) delete fields.max_drafts // the default
  const present = Object.entries(fields).filter(([, value]) => value !== undefined)
  return { path, fields: present.sort(([a], [b]) => place(a) - place(b)) }
}

/** JSON with two blanks for each level. A guide's schema, which the request has as text, becomes JSON again: as the user
 *  wrote it, because another order of its properties would be another guide. */
function json(value, indent) {
  const inner = `${indent}  `
  if (Array.isArray(value) && value.length) return `[\n${value.map(item => inner + json(item, inner)).join(',\n')}\n${indent}]`
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return JSON.stringify(value)
  const lines = Object.entries(value).map(([name, part]) =>
    `${inner}${JSON.stringify(name)}: ${name === 'json_schema' && typeof part === 'string' && isJson(part) ? part.trim().replaceAll('\n', `\n${inner}`) : json(part, inner)}`)
  return `{\n${lines.join(',\n')}\n${indent}}`
}

function isJson(text) {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** Turn JSON into a Python literal. Strings are written again, because Python knows no `\/` and no surrogates. */
function python(text) {
  const names = { true: 'True', false: 'False', null: 'None' }
  return text.replace(/"(?:[^"\\]|\\.)*"|true|false|null/g, part => names[part] ?? JSON.stringify(JSON.parse(part)))
}

function curlCode() {
  const { path, fields } = bodyNow()
  const body = json(Object.fromEntries(fields), '').replaceAll("'", String.raw`'\''`)
  return [
    `curl ${new URL(path, location.href)} \\`,
    '  -H "Authorization: Bearer $WEFT_API_KEY" \\',
    "  -H 'Content-Type: application/json' \\",
    `  -d '${body}'`,
  ].join('\n')
}

function pythonCode() {
  const { path, fields } = bodyNow(), isChat = path.includes('chat')
  const named = fields.filter(([name]) => ARGUMENTS.includes(name)), extra = fields.filter(([name]) => !ARGUMENTS.includes(name))
  const lines = named.map(([name, value]) => `    ${name}=${python(json(value, '    '))},`)
  if (extra.length) lines.push(`    extra_body=${python(json(Object.fromEntries(extra), '    '))},`)
  return `import os

from openai import OpenAI

client = OpenAI(
    base_url=${JSON.stringify(String(new URL('v1', location.href)))},
    api_key=os.environ["WEFT_API_KEY"],
)
answer = client.${isChat ? 'chat.completions' : 'completions'}.create(
${lines.join('\n')}
)
print(answer.choices[0].${isChat ? 'message.content' : 'text'})`
}

/** Show the code of the request that the page describes now, if the code is open. */
export function showCode() {
  if (!$('code-details').open) return
  const isPython = checked('language') === 'python'
  try {
    $('code').textContent = isPython ? pythonCode() : curlCode()
  } catch (error) {
    $('code').textContent = `# ${error.message}` // the tools are not valid yet
  }
  $('code-needs').hidden = !isPython
}
