"""Colours and type of the report: one sheet for the charts, which a stand-alone SVG takes along, one for the page.

Learners have the colours of Okabe and Ito (Color Universal Design, 2008), which people of every colour vision can tell
apart, darkened on white and lightened on black until each has contrast; after eight they come again. Shares of
contributors run from yellow to blue with falling lightness, as cividis does (Nunez et al., 2018), so that the order
also survives in grey. Dark mode changes variables only.
"""

from __future__ import annotations

from typing import Final

LEARNER_COLOURS: Final = 8
SHARE_LEVELS: Final = 5
"""Nobody, fewer than half of all, than three quarters of all, than all, everybody."""


def learner_class(slot: int) -> str:
    """The class that gives an element the colour of a learner, as `--c`."""
    return f"c{slot % LEARNER_COLOURS}"


def share_level(count: int, of: int) -> int:
    """Which of the SHARE_LEVELS `count` contributors among `of` are."""
    if count <= 0:
        return 0
    if count >= of:
        return SHARE_LEVELS - 1
    return max(1, min(4 * count // of, SHARE_LEVELS - 2))


CHART_STYLE: Final = """
:root{--paper:#fff;--panel:#f5f7f9;--ink:#171d24;--muted:#5b6673;--faint:#8a95a1;--line:#dde2e8;--accent:#171d24;
--c0:#0072b2;--c1:#d55e00;--c2:#008f68;--c3:#b04f93;--c4:#b27d00;--c5:#2b93cf;--c6:#7d5a3c;--c7:#5c6b7c;
--k1:#f3d22b;--k2:#c9b765;--k3:#7d8796;--k4:#20508c;--a0:#20508c;--a1:#7fb2dc;--a2:#e69f00;--a3:#c2410c;--a4:#c3cad3}
@media screen and (prefers-color-scheme:dark){:root{--paper:#12161b;--panel:#1a2027;--ink:#e8ecf1;--muted:#9ca8b5;
--faint:#768391;--line:#2d353f;--accent:#fff;--c0:#4ea8e6;--c1:#ff8a47;--c2:#2fc79d;--c3:#e18fca;--c4:#f0b83c;--c5:#8fd2fa;--c6:#cda27c;
--c7:#a9b7c6;--k1:#ffe14a;--k2:#b8aa6b;--k3:#76839a;--k4:#2f66aa;--a0:#3c78bd;--a1:#9cc8ec;--a2:#f0b03a;--a3:#f0703c;
--a4:#55606d}}
@media print{:root{--paper:#fff;--panel:#fff;--ink:#000;--muted:#444;--faint:#666;--line:#ccc;--accent:#000}}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}
.c4{--c:var(--c4)}.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:11px;
fill:var(--muted);font-variant-numeric:tabular-nums}
svg .name{fill:var(--ink);font-weight:600;font-size:12px}
svg .chip{fill:var(--c,var(--ink))}
svg .value{fill:var(--ink);font-weight:650;font-size:12px}
svg .small{font-size:9.5px}svg .tiny{font-size:9px;pointer-events:none}
svg .paper{fill:var(--paper)}
svg .band{fill:var(--panel)}
svg .grid{stroke:var(--line);stroke-width:1;fill:none;shape-rendering:crispEdges}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
svg .training{fill:none;stroke:var(--c);stroke-width:1.1;opacity:.75;stroke-linejoin:round}
svg .training:hover{stroke-width:2.4;opacity:1}
svg .halo{fill:none;stroke:var(--paper);stroke-width:4.5;stroke-linejoin:round;opacity:.7}
svg .evaluation{fill:none;stroke:var(--accent);stroke-width:2.4;stroke-linejoin:round}
svg .point{fill:var(--paper);stroke:var(--accent);stroke-width:1.8}
svg .point.last{fill:var(--accent)}
svg .step{fill:var(--c)}svg .step.odd{opacity:.66}svg .step:hover,svg .fire:hover{stroke:var(--ink);stroke-width:1.2}
svg .fire{fill:var(--c,var(--muted))}
svg .told-paper{fill:var(--c);opacity:.13}svg .hatch{stroke:var(--c);stroke-width:2.2}
svg .absent{fill:var(--paper);stroke:var(--a3);stroke-width:1;stroke-dasharray:3 2.5}
svg .cross{fill:none;stroke:var(--a3);stroke-width:2.4;stroke-linecap:round}
svg .missing{fill:var(--a3);opacity:.1}
svg .away{fill:var(--c);opacity:.17}
svg .gather{fill:var(--ink);opacity:.1}svg .grace{fill:var(--k1);opacity:.55}
svg .merge{fill:var(--ink)}
svg .vote{fill:var(--c);stroke:var(--paper);stroke-width:1}svg .vote.late{fill:var(--paper);stroke:var(--c)}
svg .answer{fill:none;stroke:var(--c);stroke-width:1.3;opacity:.9}
svg .update{fill:none;stroke:var(--ink);stroke-width:1;opacity:.5}
svg .pull{fill:none;stroke:var(--faint);stroke-width:.9;stroke-dasharray:1.5 2.5;opacity:.9}
svg .tip{fill:var(--ink);opacity:.75}
svg .tip.answer-tip{fill:var(--c);opacity:1}
svg .rate{fill:var(--c);opacity:.85}
svg .mark{stroke:var(--faint);stroke-width:1}
svg .window{fill:none;stroke:var(--ink);stroke-width:1.2}
svg .k0{fill:none;stroke:var(--a3);stroke-width:1}svg .k1{fill:var(--k1)}svg .k2{fill:var(--k2)}
svg .k3{fill:var(--k3)}svg .k4{fill:var(--k4)}
svg .cell:hover{stroke:var(--ink);stroke-width:1.5}
svg .role{fill:var(--panel);stroke:var(--line)}
svg .node{fill:var(--paper);stroke:var(--muted)}svg .node.free{stroke:var(--k4);stroke-width:2.2}
svg .queue{fill:none;stroke:var(--ink);stroke-width:1.4}
svg .latest{fill:none;stroke:var(--c0);stroke-width:1.4;stroke-dasharray:5 3}
svg .arrow{fill:var(--ink)}svg .arrow.late{fill:var(--c0)}
svg .label{paint-order:stroke;stroke:var(--paper);stroke-width:3.5px;stroke-linejoin:round}
svg .label.role-label{stroke:var(--panel)}
"""

PAGE_STYLE: Final = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
h1{font-size:30px;line-height:1.2;margin:0;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:19px;line-height:1.3;margin:0 0 2px;letter-spacing:-.01em}
section{margin:44px 0 0}
p{margin:4px 0 12px;max-width:76ch}
.lead{color:var(--muted);margin:6px 0 0;max-width:none}
.note,figcaption{color:var(--muted);font-size:13.5px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:6px 20px;margin-top:12px}.pair p{margin:0 0 2px}
.told{margin:8px 0 14px;padding-left:18px;max-width:100ch}.told li{margin:3px 0}
.outcome{display:inline-block;font-size:13px;font-weight:650;letter-spacing:.02em;vertical-align:5px;margin-left:10px;
padding:2px 10px;border-radius:99px;border:1.5px solid currentColor}
.outcome.done{color:var(--c2)}.outcome.stopped{color:var(--c4)}.outcome.failed,.outcome.unknown{color:var(--c1)}
.problems{border-left:3px solid var(--c1);padding:8px 14px;margin:20px 0 0;background:var(--panel);font-size:14px}
.problems ul{margin:4px 0 0;padding-left:18px}
.figures{display:grid;grid-template-columns:repeat(6,1fr);gap:1px;margin:26px 0 0;padding:0;
background:var(--line);border:1px solid var(--line);border-radius:10px;overflow:hidden}
.figures>div{background:var(--paper);padding:13px 10px 12px 15px}
.figures dt{color:var(--muted);font-size:13px}
.figures dd{margin:0}
.figures .big{font-size:21px;font-weight:650;letter-spacing:-.015em;line-height:1.3;white-space:nowrap}
.figures .rest{color:var(--muted);font-size:12.5px;line-height:1.4}
figure{margin:12px 0 0}
figure svg{display:block;width:100%;height:auto}
figcaption{margin-top:8px;max-width:86ch}
.scroll{overflow-x:auto}
.scroll>svg{min-width:940px}
.narrow{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;margin:8px 0 0;padding:0;font-size:13px;
color:var(--muted)}
.legend li{display:flex;align-items:center;gap:6px}
.swatch{width:13px;height:11px;border-radius:2px;background:var(--c,var(--ink));flex:none}
.swatch.rule{height:3px}
.swatch.hollow{background:none;border:1.5px solid var(--a3)}
.choice{position:absolute;opacity:0}
.choices{display:inline-flex;margin-bottom:10px;border:1px solid var(--line);border-radius:7px;overflow:hidden;
font-size:13px}
.choices label{padding:3px 12px;cursor:pointer;color:var(--muted)}
.pane{display:none}
#over-tokens:checked~.pane.tokens,#over-time:checked~.pane.time{display:block}
#over-tokens:checked~.choices label[for=over-tokens],#over-time:checked~.choices label[for=over-time]{
background:var(--ink);color:var(--paper)}
#over-tokens:focus-visible~.choices label[for=over-tokens],#over-time:focus-visible~.choices label[for=over-time]{
outline:2px solid var(--c0);outline-offset:-2px}
.stack{display:flex;height:30px;border-radius:6px;overflow:hidden;gap:1px;background:var(--paper)}
.stack>div{background:var(--c);min-width:2px}
table{border-collapse:collapse;width:100%;font-size:14px;margin-top:10px}
th,td{text-align:right;padding:5px 10px;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;color:var(--muted);font-size:13px}
th:first-child,td:first-child,.left{text-align:left}
tbody th{color:var(--ink);font-size:14px}
td.wrap{white-space:normal;min-width:190px}
details{margin-top:10px}
summary{cursor:pointer;color:var(--muted)}
pre{background:var(--panel);border-radius:8px;padding:14px 16px;overflow-x:auto;font:12.5px/1.5 ui-monospace,
SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
footer{margin-top:52px;padding-top:18px;padding-bottom:44px;color:var(--muted);font-size:13px;border-top:1px solid
var(--line)}
footer p{max-width:100ch}
@media (max-width:1000px){.figures{grid-template-columns:repeat(3,1fr)}}
@media (max-width:640px){main,header,footer{padding-left:14px;padding-right:14px}h1{font-size:24px}
.wide{display:none}.narrow{display:block}.pair{grid-template-columns:1fr}
.figures{grid-template-columns:1fr 1fr}.figures>div{padding:10px 11px}
.figures .big{font-size:18px}}
@media print{body{font-size:11pt}.choices{display:none}section{margin-top:26px;break-inside:avoid}
.scroll{overflow:visible}.scroll>svg{min-width:0}a{color:inherit}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
