# SPDX-License-Identifier: MIT
"""The pages that people see: that of `tegula report`, and the site of the documents (scripts/site). Links and images resolve;
in a headless browser, where there is one, nothing is cut off on a desktop's screen and on a phone's."""
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = Path(os.environ.get("TEGULA_TOOL", ROOT / "build/bin/tegula"))
WIDTHS = [1280, 390]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    page = tmp_path_factory.mktemp("report") / "page.html"
    record = [ROOT / f"bench/results/h200/{domain}.jsonl" for domain in ("transpose", "moe", "quant", "engram", "mhc")]
    subprocess.run([TOOL, "report", *record, "--against", ROOT / "bench/peers/tilekernels-1.0.0-h200.jsonl", "-o", page],
                   check=True, stdout=subprocess.DEVNULL)
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("markdown_it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, ROOT / "scripts/site", "--tool", TOOL, folder], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return folder


# ---- links ----

class Links(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.targets, self.images = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.add(attrs.get("id"))
        if tag in ("a", "link"):
            self.targets.append(attrs["href"])
        if tag == "img":
            self.images.append(attrs["src"])


def test_links_of_the_site_resolve(site):
    pages = {path: Links(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for target in page.targets + page.images:
            if re.match(r"[a-z]+:", target):
                continue                        # another site's
            address, _, anchor = target.partition("#")
            to = (path.parent / address).resolve() if address else path
            assert to.is_file() and site in to.parents, f"{path}: {target}"
            assert not anchor or anchor in pages[to].ids, f"{path}: {target}"
    assert any(page.images for page in pages.values())


def test_every_document_is_in_the_site(site):
    tracked = subprocess.run(["git", "ls-files", "docs/*.md"], cwd=ROOT, text=True, capture_output=True).stdout.split()
    documents = tracked or [f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")]
    for document in documents:
        page = site / document.replace("README.md", "index.html").replace(".md", ".html")
        assert page.exists() and "<h1" in page.read_text(), document
    assert all((site / name).exists() for name in ("index.html", "CONTRIBUTING.html", "CHANGELOG.html", "measurements.html"))


def test_a_link_to_nowhere_fails(tmp_path):
    pytest.importorskip("markdown_it")
    for name in ("docs/README.md", "docs/getting-started.md", "docs/python.md", "docs/benchmarking.md", "CONTRIBUTING.md",
                 "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# A\n")
    (tmp_path / "README.md").write_text("# A\n\n[here](docs/nowhere.md)\n")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/site", tmp_path / "scripts/site")
    done = subprocess.run([sys.executable, tmp_path / "scripts/site", tmp_path / "out"], text=True, capture_output=True)
    assert done.returncode == 1 and done.stderr == "README.md: link to docs/nowhere.md: no such file\n"


# ---- commands ----

def test_getting_started_can_be_copied(tmp_path):
    """Its commands, line by line; what `make build` makes is there already. Blocks of sh are all from that file, and all of
    the file's blocks are on the page (scripts/check_docs.py compares their text)."""
    script, page = ROOT / "tests/install/getting_started.sh", (ROOT / "docs/getting-started.md").read_text()
    shown = re.findall(r"<!-- from: (\S+) -->\n```sh\n", page)
    assert shown == [f"tests/install/getting_started.sh#{name}" for name in re.findall("^# doc: (.*)", script.read_text(), re.M)]
    assert page.count("```sh\n") == len(shown)
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config here")
    pytest.importorskip("torch")
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", f"make() {{ :; }}\n. {script}"], cwd=ROOT, env=env, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("1 4\n2 5\n3 6\n(8, 4032, 576) -> (8, 576, 4032) on cpu\n") or "on cuda" in done.stdout


# ---- workflows ----

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
# Flags that pkg-config prints are to be split into words.
SHELLCHECK = [path, "--shell=bash", "--exclude=SC2046"] if (path := shutil.which("shellcheck")) else None


def test_workflows_run_every_stage():
    """Each stage of `make test` is a job; planted faults and mutations are of make test-slow."""
    text = (ROOT / ".github/workflows/test.yml").read_text()
    listed = re.search(r"^        stage: \[(.*)\]$", text, re.M)[1].split(", ")
    stages = re.findall(r'"(\w+)": \w+', re.search(r"^stages = \{(.*?)\}", (ROOT / "tests/run").read_text(), re.M | re.S)[1])
    default = [stage for stage in stages if stage not in ("setup", "planted", "mutations")]
    assert sorted(listed) == sorted(default)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_files_that_are_there(path):
    for name in re.findall(r"(?<![\w./])((?:scripts|tests|docs|examples)/[\w./-]*\w)", path.read_text()):
        assert (ROOT / name).exists() or list(ROOT.glob(name)), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_well_formed(path):
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"} and {"name", "jobs"} <= workflow.keys()
    for name, job in workflow["jobs"].items():
        for needed in [needs] if isinstance(needs := job.get("needs", []), str) else needs:
            assert needed in workflow["jobs"], name
        if "uses" in job:                       # another workflow of ours, as a whole
            called = yaml.safe_load((ROOT / job["uses"]).read_text())
            assert "workflow_call" in called[True] and job.keys() <= {"uses", "needs"}, name    # YAML reads `on` as true
            continue
        assert job["runs-on"] and 0 < job["timeout-minutes"] <= 60, name
        assert "permissions" not in job or (path.name, name) == ("release.yml", "draft"), name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), name
            assert "uses" not in step or re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]), step
            if "run" in step:                   # ${{ }} is filled in before a shell sees it
                script = re.sub(r"\$\{\{.*?\}\}", "x", step["run"])
                done = subprocess.run([*SHELLCHECK, "-"] if SHELLCHECK else ["bash", "-n"], input=script, text=True, capture_output=True)
                assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"


def test_shell_scripts():
    if not SHELLCHECK:
        pytest.skip("no shellcheck here")
    scripts = [path for folder in (".ci", "scripts", "tests") for path in sorted((ROOT / folder).rglob("*"))
               if path.is_file() and (path.suffix == ".sh" or path.read_bytes()[:9] == b"#!/bin/sh")]
    assert len(scripts) >= 7
    subprocess.run([*SHELLCHECK, "--shell=sh", *scripts], check=True)


@pytest.mark.parametrize("tag, heading, is_released", [
    ("v1.2.3", "## 1.2.3, 2026-01-31", True),
    ("v1.2.3", "## 1.2.3, unreleased", False),
    ("v1.2.3", "## 1.2.2, 2026-01-31", False),
    ("v1.2.4", "## 1.2.3, 2026-01-31", False),
    ("v1.2", "## 1.2.3, 2026-01-31", False)])
def test_release_checks_the_tag(tmp_path, tag, heading, is_released):
    """The first job of a release fails unless the tag is the header's version and the change log has its date."""
    yaml = pytest.importorskip("yaml")
    header = (ROOT / "include/tegula/core.h").read_text()
    for part, number in ("MAJOR", 1), ("MINOR", 2), ("PATCH", 3):
        header = re.sub(rf"^#define TGL_VERSION_{part} \d+", f"#define TGL_VERSION_{part} {number}", header, flags=re.M)
    (tmp_path / "include/tegula").mkdir(parents=True)
    (tmp_path / "include/tegula/core.h").write_text(header)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n{heading}\n\n- A line.\n")
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    script = next(step["run"] for step in release["jobs"]["version"]["steps"] if "run" in step)
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env={**os.environ, "GITHUB_REF_NAME": tag})
    assert (done.returncode == 0) == is_released
    assert all("version" in job["needs"] for name, job in release["jobs"].items() if name not in ("version", "draft"))


def test_release_compiles_for_every_architecture():
    """The pack is looked up for all architectures of `tegula compile --all`; a job of the release compiles each."""
    jobs = re.search(r"^        arch: \[(sm_.*)\]$", (ROOT / ".github/workflows/release.yml").read_text(), re.M)[1]
    all_of_them = re.search(r'all_architectures\[\] = "(.*)"', (ROOT / "tools/compile.c").read_text())[1]
    assert jobs.split(", ") == all_of_them.split(",")


# ---- in a browser ----

# What of the page in a frame is not inside of it, or hides part of its text, and which texts of a plot overlap. What scrolls
# by itself (code, wide tables of documents) counts as a whole.
MEASURE = """
const faults = []
for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, width = frame.clientWidth
    for (const e of page.querySelectorAll("details")) e.open = true
    const name = (e) => `${width}: <${e.tagName} class='${e.getAttribute("class") || ""}'> ${e.textContent.trim().slice(0, 60)}`
    if (page.documentElement.scrollWidth > width) faults.push(`${width}: the page is ${page.documentElement.scrollWidth} wide`)
    for (const e of page.body.querySelectorAll("*")) {
        const scrolls = e.parentElement.closest("pre, .table")
        const box = e.getBoundingClientRect()
        if (!scrolls && box.width > 0 && (box.right > width + 1 || box.left < -1)) faults.push(name(e) + " is outside")
    }
    for (const plot of page.querySelectorAll("svg")) {
        const boxes = [...plot.querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]).filter(b => b[1].width > 0)
        for (const [a, p] of boxes) for (const [b, q] of boxes)
            if (a !== b && p.left < q.right && q.left < p.right && p.top + 3 < q.bottom && q.top + 3 < p.bottom)
                faults.push(name(a) + " overlaps " + b.textContent)
    }
    for (const image of page.images) if (!image.naturalWidth) faults.push(`${width}: ${image.src} is not shown`)
}
document.title = JSON.stringify(faults.slice(0, 20))
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Runs a headless Chromium on a file, with its options; gives what it prints."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not program:
        pytest.skip("no Chromium here (Debian package chromium)")
    profile = tmp_path_factory.mktemp("profile")

    def run(path, *options):
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                   "--allow-file-access-from-files", *options, path.as_uri()]
        done = subprocess.run(command, text=True, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout
    return run


def faults(browser, folder, page):
    frames = "".join(f"<iframe src='{page.as_uri()}' style='width:{width}px;height:900px;border:0'></iframe>" for width in WIDTHS)
    outer = folder / "outer.html"
    outer.write_text(f"<!DOCTYPE html><title>not measured</title><body>{frames}<script>onload = () => {{{MEASURE}}}</script>")
    title = re.search("<title>(.*?)</title>", browser(outer, "--window-size=1400,1000", "--dump-dom"), re.S)[1]
    return json.loads(html.unescape(title))


def test_the_measurement_sees_faults(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<body style='margin:0'><p style='width:600px'>wide</p><svg width='100'><text x='5' y='20'>one</text>"
                    "<text x='8' y='20'>two</text></svg><img src='nowhere.png'>")
    found = faults(browser, tmp_path, page)
    assert any("390: <P class=''> wide is outside" == f for f in found) and not any(f.startswith("1280: <P") for f in found)
    assert any("overlaps two" in f for f in found) and any("is not shown" in f for f in found)


def test_nothing_of_the_report_is_cut_off(browser, tmp_path, report):
    found = faults(browser, tmp_path, report)
    assert not found, "\n".join(found)


def test_nothing_of_the_site_is_cut_off(browser, tmp_path, site):
    for name in ("index", "docs/index", "docs/getting-started", "docs/python", "docs/moe", "docs/mhc", "docs/engram",
                 "docs/environment", "CONTRIBUTING"):
        found = faults(browser, tmp_path, site / f"{name}.html")
        assert not found, name + "\n".join(["", *found])


# The texts of the page in a frame whose contrast to what is behind them is below 4.5, those of its SVG images too (`images`, frames
# of their own); and lines of code with a background, which hides the underscores of the line above.
LEGIBLE = """
const [page, ...images] = [...document.querySelectorAll("iframe")].map((frame) => frame.contentDocument)
const faults = [matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"]
const rgba = (color) => { const [r, g, b, a] = color.match(/[\\d.]+/g).map(Number); return [r, g, b, a === undefined ? 1 : a] }
const light = (color) => rgba(color).slice(0, 3).map((c) => c / 255).map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0)
const behind = (e) => { while (e && rgba(getComputedStyle(e).backgroundColor)[3] === 0) e = e.parentElement
                        return e ? getComputedStyle(e).backgroundColor : "rgb(255, 255, 255)" }
function see(text, color, background) {
    const [a, b] = [light(color), light(background)].sort((a, b) => b - a)
    if ((a + .05) / (b + .05) < 4.5) faults.push(`"${text.trim().slice(0, 60)}": ${color} on ${background}`)
}
for (const e of page.body.querySelectorAll("*"))
    if ([...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) see(e.textContent, getComputedStyle(e).color, behind(e))
for (const image of page.images) {
    const shown = images.find((i) => i.URL === image.src)
    for (const text of shown ? shown.querySelectorAll("text") : []) see(text.textContent, getComputedStyle(text).fill, behind(image))
    if (!shown) faults.push(`${image.src} is not looked at`)
}
for (const e of page.querySelectorAll("pre *"))
    if (rgba(getComputedStyle(e).backgroundColor)[3] > 0) faults.push(`code has a background: ${e.textContent.trim().slice(0, 60)}`)
document.title = JSON.stringify(faults.slice(0, 20))
"""
SCHEMES = {"light": "--blink-settings=preferredColorScheme=1", "dark": "--blink-settings=preferredColorScheme=0"}


def illegible(browser, folder, page, scheme):
    images = [(page.parent / image).resolve() for image in Links(page).images]
    frames = "".join(f"<iframe src='{path.as_uri()}'></iframe>" for path in (page, *images))
    outer = folder / "legible.html"
    outer.write_text(f"<!DOCTYPE html><title>not measured</title><style>:root {{ color-scheme: light dark }}</style><body>{frames}"
                     f"<script>onload = () => {{{LEGIBLE}}}</script>")
    title = re.search("<title>(.*?)</title>", browser(outer, SCHEMES[scheme], "--dump-dom"), re.S)[1]
    seen, *found = json.loads(html.unescape(title))
    assert seen == scheme
    return found


def test_the_measurement_sees_what_cannot_be_read(browser, tmp_path):
    (tmp_path / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><style>@media (prefers-color-scheme: dark) { text { fill: "
                                    "#eee } }</style><text>label</text></svg>")
    page = tmp_path / "bad.html"
    page.write_text("<style>:root { color-scheme: light dark } body { background: Canvas } .bad { color: #888; background: #777 } "
                    "img { background: #fff }</style><p>fine</p><p class='bad'>pale</p><img src='a.svg'><pre><code class='bad'>a_b</code></pre>")
    for scheme, label in ("light", []), ("dark", ['"label": rgb(238, 238, 238) on rgb(255, 255, 255)']):
        assert illegible(browser, tmp_path, page, scheme) == [
            '"pale": rgb(136, 136, 136) on rgb(119, 119, 119)', '"a_b": rgb(136, 136, 136) on rgb(119, 119, 119)', *label,
            "code has a background: a_b"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_of_the_site_can_be_read(browser, tmp_path, site, scheme):
    for name in "index", "docs/mhc":
        found = illegible(browser, tmp_path, site / f"{name}.html", scheme)
        assert not found, name + "\n".join(["", *found])


@pytest.mark.parametrize("width", WIDTHS)
def test_screenshot(browser, tmp_path, report, width):
    """A picture of the page is as wide as asked for and shows something. TEGULA_TEST_SCREENSHOTS=<folder> keeps it."""
    folder = Path(os.environ.get("TEGULA_TEST_SCREENSHOTS", tmp_path))
    outer, picture = tmp_path / "outer.html", folder / f"report-{width}.png"
    outer.write_text(f"<!DOCTYPE html><body style='margin:0'><iframe src='{report.as_uri()}' style='width:{width}px;"
                     "height:2400px;border:0'></iframe>")
    browser(outer, f"--window-size={max(width, 500)},2400", f"--screenshot={picture}")
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[20:24], "big") == 2400 and len(data) > 50000
