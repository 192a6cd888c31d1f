"use strict";
// Shows the parts of a run as they come: an event each, whose data are texts and shares. Every text goes into the page
// as text, so nothing that a run is called, or says, can be anything else.
(() => {
  const root = new URL(".", document.currentScript.src);  // Below whatever path a proxy has the page.
  const at = (id) => document.getElementById(id);
  const body = (id) => document.querySelector(`#${id} .body`);
  const element = (name, classes, ...children) => {
    const made = document.createElement(name);
    if (classes) made.className = classes;
    made.append(...children.filter((child) => child !== ""));
    return made;
  };
  const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const swatch = (colour) => element("span", `swatch ${colour}`);
  const track = (share, colour) => {
    const fill = element("div", colour);
    fill.style.width = share > 0 ? `max(3px,${100 * share}%)` : "0";
    return element("div", "track", fill);
  };

  // A table whose cells change in place: columns are [name, how a row becomes a text, an element or texts, classes].
  const tables = new Map();
  const table = (place, columns, rows) => {
    const names = columns.map(([name]) => name).join();
    let known = tables.get(place);
    if (!known || known.names !== names) {
      const head = element("tr", "", ...columns.map(([name, , classes]) => element("th", classes || "", name)));
      const inner = element("tbody", "");
      place.replaceChildren(element("div", "scroll", element("table", "", element("thead", "", head), inner)));
      tables.set(place, known = { names, inner, cells: [] });
    }
    while (known.cells.length > rows.length) { known.cells.pop(); known.inner.lastChild.remove(); }
    rows.forEach((row, index) => {
      if (!known.cells[index]) {
        known.cells[index] = columns.map(([, , classes]) => element("td", classes || ""));
        known.inner.append(element("tr", "", ...known.cells[index]));
      }
      known.inner.children[index].className = row.is_current ? "now" : "";
      columns.forEach(([, shown, ], column) => {
        const cell = known.cells[index][column], value = shown(row);
        if (typeof value === "string") { put(cell, value); return; }
        const key = JSON.stringify([value.key]);
        if (cell.dataset.key !== key) { cell.dataset.key = key; cell.replaceChildren(...value.made()); }
      });
    });
  };
  const made = (key, make) => ({ key, made: make });

  // -- curves ---------------------------------------------------------------------------------------------------------

  let charts = [], ofRuns = [];
  const drawn = new Map();
  const axisNow = () => document.querySelector("input[name=over]:checked").value;
  const LEGEND_MAX = 17;
  const chart = (place, one, end, axis, height) => {
    const shape = JSON.stringify([one.name, one.is_logarithmic, axis, place.clientWidth, one.curves.map((curve) => [curve.name, curve.is_main])]);
    const known = drawn.get(place);
    if (known && known.shape === shape) {
      known.plot.setData(plots.joined(one, axis, end), !known.isZoomed);
      return;
    }
    known?.plot.destroy();
    place.replaceChildren();
    const entry = { shape, isZoomed: false };
    const options = { height, legend: { show: one.curves.length <= LEGEND_MAX } };
    entry.plot = plots.draw(one, place, axis, end, options);
    entry.plot.over.addEventListener("mouseup", () => { entry.isZoomed ||= entry.plot.select.width > 0; });
    entry.plot.over.addEventListener("dblclick", () => { entry.isZoomed = false; });
    drawn.set(place, entry);
  };
  const drawAll = () => {
    const axis = axisNow(), isPhone = innerWidth < 640;
    const end = plots.last(charts, axis);
    const loss = charts.find((one) => one.name === "loss"), settings = charts.find((one) => one.name === "settings");
    if (loss) chart(body("loss"), loss, end, axis, isPhone ? 230 : 268);
    if (settings) chart(document.querySelector("#settings .plot"), settings, plots.last([settings], "time"), "time", 150);
    const rest = charts.filter((one) => one !== loss && one !== settings), more = body("more");
    at("more").hidden = !rest.length;
    if ([...more.children].map((child) => child.dataset.name).join() !== rest.map((one) => one.name).join()) {
      more.className = "body grid";
      more.replaceChildren(...rest.map((one) => {
        const child = element("div", "", element("h3", "", one.title), element("div", "plot"));
        child.dataset.name = one.name;
        return child;
      }));
    }
    rest.forEach((one, index) => chart(more.children[index].lastChild, one, end, axis, isPhone ? 190 : 210));
    ofRuns.forEach((one) => chart(document.querySelector("#runs .plot"), one, plots.last(ofRuns, axis), axis, isPhone ? 220 : 260));
  };
  const again = () => { drawn.forEach((entry) => entry.plot.destroy()); drawn.clear(); drawAll(); };
  document.querySelectorAll("input[name=over]").forEach((input) => input.addEventListener("change", drawAll));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });

  // -- the parts ------------------------------------------------------------------------------------------------------

  const show = {
    head(part) {
      put(at("title"), part.title);
      put(at("outcome"), part.outcome);
      at("outcome").className = `outcome ${part.tone}`;
      at("outcome").hidden = false;
      put(at("phase"), [part.run, part.phase, part.tokens, part.speed, part.left].filter(Boolean).join(" · "));
      at("progress").style.width = `${100 * part.share}%`;
      at("progress").parentElement.setAttribute("aria-valuenow", Math.floor(100 * part.share));
      put(at("fault"), part.fault || "");
      at("fault").hidden = !part.fault;
      document.title = `${part.outcome === "running" ? `${Math.floor(100 * part.share)} %` : part.outcome} · ${part.title}`;
    },

    merges(part) {
      if (!part.columns.length) return;
      const place = body("merges"), count = part.columns.length;
      const grid = element("div", part.is_all ? "matrix" : "matrix far");
      grid.style.gridTemplateColumns = `max-content repeat(${count},minmax(0,1fr)) max-content`;
      if (part.is_all) grid.style.setProperty("--high", `${Math.max(13, Math.min(26, 110 / part.rows.length))}px`);
      const said = element("p", "note said", part.columns.at(-1).text);
      const cell = (classes, index) => {
        const one = element("span", `cell ${classes}`);
        one.title = part.columns[index].text;
        one.addEventListener("pointerenter", () => put(said, part.columns[index].text));
        return one;
      };
      if (!part.is_all) {
        grid.append(element("span", "name", "votes"));
        part.columns.forEach((column, index) => {
          const one = cell("vote", index);
          one.style.setProperty("--share", `${100 * column.share}%`);
          grid.append(one);
        });
        grid.append(element("span", "told", ""));
      }
      for (const row of part.rows) {
        grid.append(element("span", "name", part.is_all ? `${row.slot}` : `learner ${row.slot}`));
        [...row.cells].forEach((letter, index) => grid.append(cell(`${row.colour} ${letter.trim()}`, index)));
        grid.append(element("span", "told", row.late));
      }
      const key = (letter, text) => element("span", "", element("span", `cell ${letter}`), text);
      const keys = element("div", "key", key("v", "in the merge"), key("l", "too late"), key("r", "refused"));
      place.replaceChildren(grid, keys, said);
      small("merges", `${part.count} in all, the newest at the right`);
    },

    goodput(part) {
      const tiles = part.tiles.flatMap(([name, figure, rest]) => [element("div", "", element("dt", "", name), element("dd", "figure", figure), element("dd", "", rest))]);
      const bars = part.waits.flatMap((row) => [
        element("span", "", swatch(row.colour), `${row.slot}`), track(row.share, row.colour), element("span", "side", row.text),
      ]);
      const title = part.is_all ? "Waited for an item or a credit" : "Waited the longest for an item or a credit";
      const waits = bars.length ? [element("h3", "", title), element("div", "bars", ...bars)] : [];
      body("goodput").replaceChildren(element("dl", "tiles", ...tiles), ...waits);
    },

    learners(part) {
      if (!part.rows.length) return;
      const place = body("learners");
      if (!place.querySelector(".hosts")) place.replaceChildren(element("div", "hosts"), element("p", "note others"));
      const columns = [
        ["learner", (row) => row.name ? made([row.name], () => [row.name]) : made([row.slot, row.life], () => [swatch(row.colour), `${row.slot}`, row.life ? element("small", "past", ` life ${row.life}`) : ""].filter(Boolean))],
        ["phase", (row) => row.name ? made([row.name, row.state], () => [row.state]) : made([row.state, row.tone], () => [element("span", `pill ${row.tone}`, row.state)]), "left"],
        ["steps", (row) => row.step],
        ["speed", (row) => row.speed],
        ["loss", (row) => row.loss],
        ["stale", (row) => row.stale],
        ...(part.quantiles.length ? [["lost", (row) => row.lost]] : []),
        ["waits", (row) => row.waits, "far-only"],
        ["tokens", (row) => row.tokens, "far-only"],
        ["sent", (row) => row.sent, "far-only"],
        ...(part.has_machines ? [["machine", (row) => row.machine, "left far-only"]] : []),
        ...(part.rows.some((row) => row.reason) ? [["reason", (row) => row.reason, "reason left"]] : []),
      ];
      table(place.firstChild, columns, [...part.quantiles, ...part.rows]);
      place.lastChild.replaceChildren(...part.others.flatMap((row) => [
        element("span", `pill ${row.tone}`, `${row.name}: ${row.state}${row.life ? `, life ${row.life}` : ""}`), row.reason ? ` ${row.reason} ` : " ",
      ]));
      small("learners", `${part.count}; stale: the most steps since a fragment was adopted`);
    },

    sites(part) {
      at("sites").hidden = !part.rows.length;
      if (!part.rows.length) return;
      table(body("sites"), [
        ["site", (row) => row.site, "left"],
        ["global at the start", (row) => row.first],
        ["global now", (row) => row.global],
        ["its own last", (row) => row.own],
        ["difference", (row) => row.gap],
        ["tokens", (row) => row.tokens, "far-only"],
        ["passes", (row) => row.epochs, "far-only"],
        ["data", (row) => row.data, "left far-only"],
        ...(part.rows.some((row) => row.reason) ? [["", (row) => row.reason, "reason left"]] : []),
      ], part.rows);
      small("sites", "losses on the held-out part of each site's own data; difference: its own last model minus the global one");
    },

    fragments(part) {
      if (!part.rows.length) return;
      body("fragments").replaceChildren(element("div", "chips", ...part.rows.map((row) => {
        const bar = element("i", "");
        bar.style.width = `${100 * row.share}%`;
        return element("div", "chip", element("b", "", `${row.index}`), element("em", "", row.age),
          element("small", "", `${row.version} by ${row.votes}`), bar);
      })));
      small("fragments", part.is_over ? "last merged before the end" : "since the last merge");
    },

    traffic(part) {
      if (!part.rows.length) return;
      table(body("traffic"), [
        ["from", (row) => row.source, "edge"],
        ["to", (row) => row.target, "left edge"],
        ["items", (row) => row.items, "far-only"],
        ["bytes", (row) => row.bytes],
        ["", (row) => made(row.share, () => [track(row.share, "c0")]), "amount far-only"],
        ["now", (row) => row.rate],
        ["waits", (row) => row.waits, "far-only"],
      ], part.rows);
      small("traffic", [part.total, part.rate, part.more > 0 ? `${part.more} more edges` : ""].filter(Boolean).join(" · "));
    },

    failures(part) {
      if (!part.rows.length) return;
      body("failures").replaceChildren(list(part.rows));
      small("failures", part.more ? `and ${part.more} before` : "");
    },

    settings(part) {
      const pairs = ([name, value]) => element("span", "", `${name} `, element("b", "", value));
      const shown = [element("div", "pairs", ...part.asked.map(pairs))];
      if (part.in_use.length) shown.push(element("h3", "", "In use now"), element("div", "pairs", ...part.in_use.map(pairs)));
      if (part.rows.length) shown.push(list(part.rows));
      if (!part.rows.length && part.asked.length) shown.push(element("p", "note", "Nothing has followed the links: these hold as they were asked for."));
      body("settings").replaceChildren(...shown);
      small("settings", part.count ? `${part.count} changes` : "");
    },

    data(part) {
      if (part.rows.length) {
        const row = (one) => element("tr", "", element("th", "", one.name), element("td", `left wrap ${one.tone}`, one.text));
        body("data").replaceChildren(element("div", "scroll", element("table", "", element("tbody", "", ...part.rows.map(row)))));
      } else if (part.why) body("data").replaceChildren(element("p", "note", part.why));
    },

    charts(part) { charts = part; drawAll(); },

    runs(part) {
      if (part.rows.length) table(body("runs"), [
        ["run", (row) => made([row.name, row.colour], () => {
          const link = element("a", "", row.name);
          link.href = new URL(`run/${encodeURIComponent(row.name)}`, root);
          return [row.colour ? swatch(row.colour) : "", link].filter(Boolean);
        })],
        ["outcome", (row) => made([row.outcome, row.tone], () => [element("span", `pill ${row.tone}`, row.outcome)]), "left"],
        ["loss", (row) => row.loss],
        ["tokens", (row) => row.tokens],
        ["goodput", (row) => row.goodput, "far-only"],
        ["merged", (row) => row.merged, "far-only"],
        ["learners", (row) => row.learners, "far-only"],
        ["sent", (row) => row.sent, "far-only"],
        ["took", (row) => row.wall],
      ], part.rows);
      ofRuns = part.charts;
      small("runs", part.more > 0 ? `the newest ${part.rows.length}` : "");
      drawAll();
    },
  };
  const list = (rows) => element("ul", "list", ...rows.map((row) =>
    element("li", "", element("time", "", row.at), element("p", row.tone, element("span", "", row.text)))));
  const small = (id, text) => {
    const title = document.querySelector(`#${id} h2`);
    let place = title.querySelector("small");
    if (!place) title.append(place = element("small", ""));
    put(place, text);
  };

  // -- events ---------------------------------------------------------------------------------------------------------

  const link = (tone, text) => { at("link").className = `pill ${tone}`; put(at("link"), text); };
  const [kind, name] = location.pathname.slice(root.pathname.length).split("/");
  const source = new EventSource(new URL(`run/${kind === "run" ? name : "-"}/events`, root));
  source.onopen = () => link("good", "live");
  source.onerror = () => link("bad", "connection lost, tried again");
  for (const [part, shows] of Object.entries(show)) source.addEventListener(part, (event) => shows(JSON.parse(event.data)));
})();
