"use strict";
// Draws the charts whose data the page holds. Without this script the page lacks these charts only.
(() => {
  const charts = JSON.parse(document.getElementById("curves-data").textContent);
  const axisNow = () => document.querySelector("input[name=over]:checked").value;
  const places = [...document.querySelectorAll("[data-chart]")];
  let drawn = [];
  const again = () => {
    drawn.forEach((plot) => plot.destroy());
    const end = plots.last(charts, axisNow());
    drawn = places.map((place) => plots.draw(charts[place.dataset.chart], place, axisNow(), end));
  };
  document.querySelectorAll("input[name=over]").forEach((input) => input.addEventListener("change", again));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; again(); } });
  document.querySelector(".choices").hidden = false;
  again();
})();
