// Asking the server. Addresses are relative, so the token in the page's own address goes along.

export class ApiError extends Error {}

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
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export async function get(parts, query, signal) {
  return answer(await fetch(address(parts, query), { signal }));
}

export async function post(parts, body) {
  const headers = { "Content-Type": "application/json" };
  return answer(await fetch(address(parts), { method: "POST", headers, body: JSON.stringify(body) }));
}
