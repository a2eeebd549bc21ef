//! The events of each watch.

use super::*;
use MsgType::*;

#[test]
fn once_at_registration_then_at_and_below() {
    let (mut s, mut d, _) = server();
    let mut w = Wire::new(&mut s, 0);
    assert_eq!(w.ask(&mut s, Watch, b"/a\0t\0"), ok());
    assert_eq!(w.events(&mut s), ["/a t"], "though there is no such node");
    assert_eq!(w.ask(&mut s, Watch, b"/a\0t\0"), err("EEXIST"));
    for (kind, payload) in
        [(Write, &b"/a/b/c\0v"[..]), (Write, b"/a/b/c\0v"), (Mkdir, b"/a/b\0"), (Write, b"/ab\0")]
    {
        assert_eq!(d.ask(&mut s, kind, payload), ok());
    }
    assert_eq!(w.events(&mut s), ["/a/b/c t"], "two unread events are one; none where nothing changed");
    assert_eq!(d.ask(&mut s, SetPerms, b"/a/b\0r0\0"), ok());
    assert_eq!(w.events(&mut s), ["/a/b t"]);
    assert_eq!(w.ask(&mut s, Unwatch, b"/a\0u\0"), err("ENOENT"));
    assert_eq!(d.ask(&mut s, Write, b"/a\0v"), ok());
    assert_eq!(w.ask(&mut s, Unwatch, b"/a\0t\0"), ok());
    assert_eq!(w.events(&mut s), [""; 0], "what waited goes with the watch");
}

#[test]
fn a_removed_ancestor_tells_watches_below() {
    let (mut s, mut d, _) = server();
    let mut w = Wire::new(&mut s, 0);
    assert_eq!(d.ask(&mut s, Write, b"/a/b/c\0v"), ok());
    for path in [&b"/\0root\0"[..], b"/a\0t\0", b"/a/b/c\0t\0", b"/a/missing\0t\0", b"/a-\0t\0"] {
        assert_eq!(w.ask(&mut s, Watch, path), ok());
    }
    w.events(&mut s);
    assert_eq!(d.ask(&mut s, Rm, b"/a\0"), ok());
    assert_eq!(
        w.events(&mut s),
        ["/a t", "/a root", "/a/b/c t"],
        "the watcher of a removed node gets an event"
    );
}

#[test]
fn relative_watches_tell_relative_paths() {
    let (mut s, mut d, mut g) = server();
    assert_eq!(g.ask(&mut s, Watch, b"data\0rel\0"), ok());
    assert_eq!(g.ask(&mut s, Watch, b"/local/domain/7/data\0abs\0"), ok());
    assert_eq!(g.events(&mut s), ["data rel", "/local/domain/7/data abs"]);
    assert_eq!(d.ask(&mut s, Write, b"/local/domain/7/data/y/z\x002"), ok());
    assert_eq!(g.events(&mut s), ["data/y/z rel", "/local/domain/7/data/y/z abs"]);
}

#[test]
fn depth_limits_how_far_below() {
    let (mut s, mut d, _) = server();
    let mut w = Wire::new(&mut s, 0);
    assert_eq!(w.ask(&mut s, Watch, b"/a\0zero\x000\0"), ok());
    assert_eq!(w.ask(&mut s, Watch, b"/a\0one\x001\0"), ok());
    w.events(&mut s);
    assert_eq!(d.ask(&mut s, Write, b"/a/b/c\0v"), ok());
    assert_eq!(
        w.events(&mut s),
        ["/a zero", "/a one", "/a/b one"],
        "each gets an event of what it can see, made on the way"
    );
    assert_eq!(d.ask(&mut s, Write, b"/a/b/c\0w"), ok());
    assert_eq!(w.events(&mut s), [""; 0]);
    assert_eq!(d.ask(&mut s, Write, b"/a/b\0w"), ok());
    assert_eq!(w.events(&mut s), ["/a/b one"]);
}

#[test]
fn no_one_is_notified_of_what_it_may_not_read() {
    let (mut s, mut d, mut g) = server();
    assert_eq!(d.ask(&mut s, Write, b"/tool/secret\x001"), ok());
    for path in [&b"/tool\0t\0"[..], b"/tool/secret\0t\0"] {
        assert_eq!(g.ask(&mut s, Watch, path), ok());
    }
    g.events(&mut s);
    assert_eq!(d.ask(&mut s, Write, b"/tool/secret\x002"), ok());
    assert_eq!(d.ask(&mut s, Rm, b"/tool\0"), ok());
    assert_eq!(g.events(&mut s), [""; 0], "the root, where that is missing now, is not its to list");
    // A watcher that could read the node is notified that it no longer can.
    assert_eq!(d.ask(&mut s, Write, b"/local/domain/7/data/x\x001"), ok());
    assert_eq!(g.ask(&mut s, Watch, b"data/x\0t\0"), ok());
    g.events(&mut s);
    assert_eq!(d.ask(&mut s, SetPerms, b"/local/domain/7/data/x\0n0\0"), ok());
    assert_eq!(g.events(&mut s), ["data/x t"]);
}

#[test]
fn special_paths_tell_of_domains() {
    let (mut s, mut d, mut g) = server();
    for w in [&mut d, &mut g] {
        for path in [&b"@introduceDomain\0i\0"[..], b"@releaseDomain\0r\0"] {
            assert_eq!(w.ask(&mut s, Watch, path), ok());
        }
        assert_eq!(w.events(&mut s), ["@introduceDomain i", "@releaseDomain r"]);
    }
    s.introduce(DomId(9)).unwrap();
    s.introduce(DomId(9)).unwrap();
    assert_eq!(d.events(&mut s), ["@introduceDomain i"]);
    assert_eq!(g.events(&mut s), [""; 0], "domain 0's to allow");
    assert_eq!(d.ask(&mut s, SetPerms, b"@releaseDomain\0r0\0"), ok());
    s.release(DomId(9)).unwrap();
    assert_eq!(
        (d.events(&mut s), g.events(&mut s)),
        (vec!["@releaseDomain r".into()], vec!["@releaseDomain r".into()])
    );
}

#[test]
fn a_depth_asks_which_domain_it_was() {
    let (mut s, mut d, mut g) = server();
    for path in [
        &b"@releaseDomain\0r\0"[..],
        b"@releaseDomain\0which\x001\0",
        b"@releaseDomain/9\0nine\0",
        b"@introduceDomain\0which\x001\0",
        b"@other\0o\0",
    ] {
        assert_eq!(d.ask(&mut s, Watch, path), ok());
    }
    let at_once =
        ["@releaseDomain r", "@releaseDomain which", "@releaseDomain/9 nine", "@introduceDomain which"];
    assert_eq!(d.events(&mut s), [&at_once[..], &["@other o"]].concat());
    s.introduce(DomId(9)).unwrap();
    s.introduce(DomId(10)).unwrap();
    assert_eq!(d.events(&mut s), ["@introduceDomain/9 which", "@introduceDomain/10 which"]);
    s.release(DomId(9)).unwrap();
    assert_eq!(d.events(&mut s), ["@releaseDomain r", "@releaseDomain/9 which", "@releaseDomain/9 nine"]);
    s.release(DomId(10)).unwrap();
    assert_eq!(d.events(&mut s), ["@releaseDomain r", "@releaseDomain/10 which"]);
    assert_eq!(g.ask(&mut s, Watch, b"@releaseDomain/10\0t\0"), ok());
    g.events(&mut s);
    s.introduce(DomId(10)).unwrap();
    s.release(DomId(10)).unwrap();
    assert_eq!(g.events(&mut s), [""; 0], "the permissions are those of @releaseDomain");
}

#[test]
fn resetting_forgets_watches_and_transactions() {
    let (mut s, mut d, mut g) = server();
    assert_eq!(g.ask(&mut s, Watch, b"data\0t\0"), ok());
    let tx = g.start(&mut s);
    assert_eq!(s.usage(DomId(7)), (2, 1, 1));
    assert_eq!(g.ask(&mut s, ResetWatches, b"\0"), ok());
    g.events(&mut s);
    assert_eq!(s.usage(DomId(7)), (2, 0, 0));
    assert_eq!(d.ask(&mut s, Write, b"/local/domain/7/data\0v"), ok());
    assert_eq!(g.events(&mut s), [""; 0]);
    assert_eq!(g.ask_in(&mut s, tx, Read, b"data\0"), err("ENOENT"));
}
