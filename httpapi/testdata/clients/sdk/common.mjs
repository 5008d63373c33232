// What the checks of both libraries for Node share.
import { createRequire } from 'node:module'

export const [base, apiKey, part, modules] = process.argv.slice(2)
export const library = createRequire(modules + '/')

export const say = content => [{ role: 'user', content }]
export const all = async s => {
  const list = []
  for await (const x of await s) list.push(x)
  return list
}

export async function cancelled(result) { // waits until the server has seen that its client is gone
  await (await fetch(base + '/cancelled')).text()
  return result
}

// run prints the result of each check as a line of JSON.
export async function run(demo, checks) {
  for (const [name, f] of Object.entries(part === 'demo' ? demo : checks)) {
    let result
    try {
      result = await f()
    } catch (e) { // the table has no such result: the test shows it
      result = { exception: e.constructor.name, text: String(e.stack).slice(0, 2000) }
    }
    console.log(JSON.stringify({ check: name, result: result ?? null }))
  }
}
