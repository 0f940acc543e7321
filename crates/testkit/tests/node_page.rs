//! The page of the node in a real browser, on a real containerd: figures move, what waits says why, what others wrote is text.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use testkit::browser::Browser;
use testkit::harness::{Harness, TIMEOUT};
use testkit::node::{Agent, AgentOptions, Containerd};

const LOOKS: &str =
    "return performance.getEntriesByType('resource').filter(e => e.name.endsWith('/look')).length";

fn pod(name: &str, image: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
         - {{ name: main, image: {image}, imagePullPolicy: Never, command: [sh, -c, {script:?}] }}\n"
    )
}

/// For who wants to see it: `LONGSHORE_PICTURES` names a directory.
fn keep(browser: &Browser<'_>, name: &str) {
    let picture = browser.picture();
    assert!(picture.starts_with(b"\x89PNG"));
    if let Some(dir) = std::env::var_os("LONGSHORE_PICTURES") {
        std::fs::write(PathBuf::from(dir).join(format!("{name}.png")), picture).unwrap();
    }
}

fn row(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('#list .pod')].find(r => r.querySelector('.title b').textContent === '{name}-demo')"
    )
}

#[test]
fn a_browser_shows_the_node_its_pods_and_why_they_wait() {
    let options = AgentOptions { flags: vec!["--node-page=4194".into()], ..AgentOptions::default() };
    let Some(h) = Harness::start(Containerd::default(), options) else { return };
    let Some(browser) = Browser::start(&h.node) else { return };
    let busybox = "localhost/busybox:v1";
    h.apply("busy", &pod("busy", busybox, "trap exit TERM; while :; do :; done"));
    h.apply("calm", &pod("calm", busybox, "trap exit TERM; while :; do sleep 0.2; done"));
    h.apply("nowhere", &pod("nowhere", "localhost/nowhere:v1", "true"));
    let hostile = "echo '<img src=x onerror=\"document.title=1;window.owned=1\"><script>window.owned=1</script>' \
                   >/dev/termination-log; exit 3";
    h.apply("hostile", &pod("hostile", busybox, hostile));
    h.wait_ready("busy");
    h.wait_ready("calm");

    browser.size(1440, 1000);
    browser.open("http://127.0.0.1:4194/");
    browser.wait("all Pods there", "return document.querySelectorAll('#list .pod').length === 4");
    let shows = |what: &str, name: &str, text: &str| {
        browser.wait(what, &format!("return ({})?.innerText.includes({text:?}) === true", row(name)));
    };
    shows("the missing image", "nowhere", "ErrImageNeverPull");
    shows("why it ends again and again", "hostile", "ended with exit code 3: <img src=x onerror=");
    shows("what that means", "hostile", "It ends again and again");
    browser.wait("figures", "return /[0-9] %/.test(document.querySelector('.hero.cpu .big').textContent)");
    browser.wait(
        "a busy Pod's processor",
        &format!(
            "return /^([1-9][0-9]+m|[0-9.]+)$/.test(({}).querySelector('.cpu b').textContent)",
            row("busy")
        ),
    );
    // A node of a test has no way out, so there is no line for it.
    for line in [".hero.cpu .line", ".hero.memory .line", "#list .pod.ok .memory .line"] {
        let drawn =
            format!("return (document.querySelector('{line}')?.getAttribute('d') ?? '').includes('C')");
        browser.wait("drawn", &drawn);
    }
    browser.wait("events", "return document.querySelector('#events').innerText.includes('Started')");
    let owned = browser
        .run("return [window.owned ?? 0, document.images.length, document.title.includes('Longshore')]");
    assert_eq!(owned, serde_json::json!([0, 1, true]), "what a Pod wrote became markup");
    keep(&browser, "wide-light");

    by_keyboard(&browser);
    on_a_phone(&browser);
    nobody_looks(&browser);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

fn by_keyboard(browser: &Browser<'_>) {
    browser.keys("/");
    browser.keys("nowhere");
    browser.wait("filtered", "return document.querySelectorAll('#list .pod').length === 1");
    browser.keys("\u{e00c}");
    browser.wait("all again", "return document.querySelectorAll('#list .pod').length === 4");
    browser.keys("j");
    browser.keys("j");
    browser.keys("\u{e007}");
    browser
        .wait("open", "return document.querySelector('#list .pod:nth-child(2) .more-of').checkVisibility()");
    browser.keys("tt");
    browser.wait("dark", "return document.documentElement.dataset.theme === 'dark'");
    keep(browser, "wide-dark");
    browser.keys("l");
    browser.wait(
        "Chinese",
        "return document.documentElement.lang === 'zh-CN' && document.body.innerText.includes('内存')",
    );
    browser.keys("?");
    browser.wait("the keys", "return document.querySelector('#help').open");
    browser.keys("\u{e00c}");
    browser.wait("closed", "return !document.querySelector('#help').open");
}

fn on_a_phone(browser: &Browser<'_>) {
    browser.size(360, 780);
    for (language, name) in [("zh-CN", "phone-dark"), ("en", "phone-light")] {
        browser.wait("the language", &format!("return document.documentElement.lang === '{language}'"));
        let too_wide = browser.run(
            "return [...document.querySelectorAll('main *, header *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 \
             && !e.closest('svg') && getComputedStyle(e).position !== 'absolute').map(e => e.outerHTML.slice(0, 120))",
        );
        assert_eq!(too_wide, serde_json::json!([]), "it does not fit");
        assert_eq!(browser.run("return document.documentElement.scrollWidth"), 360);
        keep(browser, name);
        // From dark over the system's to light; and the other language.
        browser.keys("ttl");
    }
}

/// Nothing is asked, so nothing is measured, while the page is paused or hidden.
fn nobody_looks(browser: &Browser<'_>) {
    browser.keys("p");
    browser.wait("paused", "return document.querySelector('#live').classList.contains('held')");
    // What was under way has come when the count stays for longer than the page ever waits.
    let end = std::time::Instant::now() + TIMEOUT;
    loop {
        let before = browser.run(LOOKS);
        std::thread::sleep(std::time::Duration::from_secs(5));
        if browser.run(LOOKS) == before {
            break;
        }
        assert!(std::time::Instant::now() < end, "it goes on asking");
    }
    let before = browser.run(LOOKS);
    let _ = browser.run("Object.defineProperty(document, 'hidden', { value: true, configurable: true })");
    browser.keys("p");
    assert_eq!(browser.run(LOOKS), before, "a hidden page asks");
    let _ = browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))");
    browser.wait("going on", &format!("{LOOKS} > {before}"));
}

/// On any other address it is as guarded as the kubelet's API.
#[test]
fn elsewhere_nobody_sees_it_who_is_not_known() {
    let options = |more: &str| AgentOptions {
        flags: vec!["--node-page=0.0.0.0:4194".into()],
        config: format!("authentication: {{ anonymous: {{ enabled: false }} }}\n{more}"),
        ..AgentOptions::default()
    };
    let allowed = options("authorization: { mode: AlwaysAllow }\n");
    let Some(mut h) = Harness::start(Containerd::default(), allowed) else { return };
    {
        let Some(browser) = Browser::start(&h.node) else { return };
        for path in ["", "look", "page.js"] {
            browser.open(&format!("https://127.0.0.1:4194/{path}"));
            assert_eq!(browser.run("return document.body.innerText"), "Unauthorized", "{path}");
        }
    }
    h.agent.kill9();
    let nobody_knows = options("authorization: { mode: Webhook }\n");
    h.agent = Agent::start(&h.node, h.binary(), &nobody_knows).unwrap();
    h.until("refused", || h.agent.last_words().contains("--node-page: 0.0.0.0:4194").then_some(()));
}
