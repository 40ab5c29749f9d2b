// Requests to the server. Addresses are relative, so they include the token in the page's own address.

export class ApiError extends Error {}
export class NoConnectionError extends Error {}

async function ask(where, how) {
  try {
    return await fetch(where, how);
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new NoConnectionError("no connection");
  }
}

async function answer(response) {
  const text = await response.text();
  let data = null;
  try {
    data = JSON.parse(text);
  } catch {
    throw new ApiError(text || `the server answered ${response.status}`);
  }
  if (!response.ok) throw new ApiError(data.error ?? `the server answered ${response.status}`);
  return data;
}

export function address(parts, query) {
  const path = "api/" + parts.map(encodeURIComponent).join("/");
  const given = Object.entries(query ?? {}).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export async function get(parts, query, signal) {
  return answer(await ask(address(parts, query), { signal }));
}

export async function post(parts, body) {
  const headers = { "Content-Type": "application/json" };
  return answer(await ask(address(parts), { method: "POST", headers, body: JSON.stringify(body) }));
}
