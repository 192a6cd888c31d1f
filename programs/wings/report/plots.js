"use strict";
// Draws charts of curves with uPlot, for the report and the dashboard: `plots.draw`. A drag zooms all charts at once, a
// double click shows all again, and the legend says the values under the pointer.
const plots = (() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // Where curves end on an axis: tokens, time or bytes.
  const last = (charts, axis) =>
    Math.max(0, ...charts.flatMap((chart) => chart.curves.map((curve) => curve[axis].at(-1) ?? 0)));

  const scaled = (value) => {
    if (value && Math.abs(value) < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
    const unit = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([size]) => Math.abs(value) >= size);
    return unit ? +(value / unit[0]).toPrecision(4) + unit[1] : String(+value.toPrecision(4));
  };
  const seconds = (value) => {
    if (value < 120) return `${+value.toFixed(2)} s`;
    const [hours, minutes] = [Math.floor(value / 3600), Math.floor(value / 60) % 60];
    if (hours) return `${hours} h ${String(minutes).padStart(2, "0")}`;
    return `${minutes} min ${String(Math.round(value) % 60).padStart(2, "0")}`;
  };
  const write = { tokens: scaled, time: seconds, bytes: (value) => `${scaled(value)}B` };
  const steps = { time: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
    14400, 43200, 86400, 259200, 864000] };

  // Round values from low to high; of a wide logarithmic range 1, 2 and 5 times the powers of ten, or those alone.
  const ticks = (low, high, isWide) => {
    const found = [];
    if (isWide) {
      const factors = high / low < 1e4 ? [1, 2, 5] : [1];
      for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
        found.push(...factors.map((factor) => factor * 10 ** power));
    } else {
      const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
      for (let index = Math.ceil(low / step); index * step <= high; index++) found.push(+(index * step).toPrecision(12));
    }
    return found.filter((value) => value >= low && value <= high);
  };
  // The ends of an axis of values: those of what was measured, and 0 in place of the lower one where it is to begin there.
  const range = (low, high, isLogarithmic, beginsAtZero) => {
    if (low == null) return [0, 1];
    if (isLogarithmic) return [low / (high / low || 1) ** 0.05 * 0.99, high * (high / low) ** 0.05 * 1.01];
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    return [beginsAtZero && low >= 0 && low < 0.8 * high ? 0 : low - pad, high + pad];
  };
  // Curves have places of their own: a curve's value under the pointer is that of its nearest place.
  const nearest = (plot, series, at) => {
    if (series === 0) return at;
    const values = plot.data[series];
    for (let off = 0; off < values.length; off++) {
      if (values[at - off] != null) return at - off;
      if (values[at + off] != null) return at + off;
    }
    return at;
  };

  const mark = (plot, bands, axis) => {
    const { ctx, bbox } = plot, ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const band of bands) {
      const [begin, end] = band[axis].map((value) => plot.valToPos(value, "x", true));
      const wide = Math.max(end - begin, 2 * ratio);
      ctx.fillStyle = colour(band.colour === "window" ? "faint" : "a3");
      ctx.globalAlpha = 0.16;
      ctx.fillRect(begin, bbox.top, wide, bbox.height);
      ctx.globalAlpha = 1;
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      if (ctx.measureText(band.name).width + 8 * ratio > wide) continue;
      ctx.fillStyle = colour("muted");
      ctx.textAlign = "center";
      ctx.fillText(band.name, begin + wide / 2, bbox.top + bbox.height - 7 * ratio);
    }
    ctx.restore();
  };

  // All charts reach from the beginning of the run to its end, and what a null breaks stays open up to both sides.
  const joined = (chart, axis, end) => {
    const tables = [[[0, end]], ...chart.curves.map((curve) => [curve[axis], curve.values])];
    return uPlot.join(tables, tables.map((table) => table.map(() => 2)));
  };

  const DENSE = 24; // So many curves cannot be followed one by one, and show as a band.

  // Draws a chart into `place` over `axis`, from 0 to `end`; returns uPlot's object. `options` go above those here.
  const draw = (chart, place, axis, end, options) => {
    const ink = () => colour("muted"), line = () => colour("line");
    const side = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 } };
    const font = "11px system-ui, sans-serif";
    const points = { size: 6, fill: (_, index) => colour(chart.curves[index - 1].colour) };
    const isDense = chart.curves.length > DENSE;
    const series = chart.curves.map((curve) => ({
      label: curve.name,
      stroke: () => colour(curve.colour),
      width: curve.is_main ? 2.4 : isDense ? 0.8 : 1.2,
      alpha: curve.is_main || !isDense ? 1 : 0.4,
      points: { show: curve.is_main || curve.values.length === 1, size: 6, width: 1.8, fill: () => colour("paper") },
      value: (plot, value) => (value == null ? "-" : scaled(value)),
    }));
    return new uPlot({
      width: place.clientWidth,
      height: place.clientWidth < 640 ? 260 : chart.curves.some((curve) => curve.is_main) ? 360 : 240,
      cursor: { sync: { key: axis }, dataIdx: nearest, drag: { x: true, y: false }, points },
      scales: {
        x: { time: false },
        y: { distr: chart.is_logarithmic ? 3 : 1, range: (_, low, high) => range(low, high, chart.is_logarithmic, chart.begins_at_zero) },
      },
      axes: [
        { ...side, font, size: 32, space: 90, values: (_, all) => all.map(write[axis]), ...(steps[axis] && { incrs: steps[axis] }) },
        {
          ...side, font, size: 52,
          splits: (_, index, low, high) => ticks(low, high, chart.is_logarithmic && high / low > 12),
          filter: (_, all) => all,
          values: (_, all) => all.map(scaled),
        },
      ],
      series: [{ label: axis, value: (_, value) => (value == null ? "-" : write[axis](value)) }, ...series],
      hooks: { drawClear: [(each) => mark(each, chart.bands, axis)] },
      ...options,
    }, joined(chart, axis, end), place);
  };

  return { draw, joined, last, range };
})();
