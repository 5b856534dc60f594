const first = document.getElementById("first");
first.textContent = first.textContent.replace("$MUSTER_URL", location.origin);
const tone = { ready: "good", degraded: "poor" };
async function look() {
  let said = { status: "no answer", parts: {} };
  try { said = await (await fetch("/readyz", { cache: "no-store" })).json(); } catch { /* shown as such */ }
  document.getElementById("state").className = "state " + (tone[said.status] || "bad");
  document.getElementById("word").textContent = said.status;
  document.getElementById("parts").replaceChildren(...Object.entries(said.parts).map(([name, part]) => {
    const item = document.createElement("li"), card = document.createElement("div"), dot = document.createElement("span");
    card.className = part.ready ? "good" : "bad";
    dot.className = "dot";
    card.append(dot, name + (part.ready ? " is ready" : " is not ready"));
    item.append(card);
    return item;
  }));
}
look();
setInterval(look, 3000);
