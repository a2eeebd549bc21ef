//! A backend whose `/run` is full, or becomes full: memory that outlives it cannot be kept, but its
//! guests are served.
//!
//! The file system is a tmpfs of 64 KiB, in namespaces that a child of this program has for itself.

use pregrant::wire::netif::RSP_OKAY;
use pregrant_host::drivers::recovery::FileRecovery;
use pregrant_test_machine::log_lines;
use pregrant_test_machine::machine::Test;
use pregrant_test_machine::stage::{BAD, Stage};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::skip::skip;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};

pub const TESTS: &[Test] = &[("no_page_of_a_full_file_system_ends_the_process", full)];

fn full() {
    let allowed = Command::new("unshare").args(["-Urm", "true"]).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return skip("no unshare(1), or no user namespaces here");
    }
    let dir = std::env::temp_dir().join(format!("pregrant-full-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let mut child = Command::new("unshare");
    child.args(["-Urm", "--"]).arg(std::env::current_exe().unwrap()).arg("full").arg(&dir);
    let ended = child.stdin(Stdio::null()).status().unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(ended.success(), "the process on a full file system: {ended}");
}

pub fn on_a_full_file_system(dir: &Path) {
    log_lines::capture();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(dir).status();
    assert!(mount.unwrap().success());
    // A page's file as earlier versions made it: of its full size, and a hole.
    let vif = dir.join(format!("vif{BAD}.1"));
    fs::create_dir_all(vif.join("0")).unwrap();
    File::create(vif.join("0/tx")).unwrap().set_len(4096).unwrap();
    let mut filler = File::create(dir.join("capture.pcap")).unwrap();
    while filler.write(&[1; 4096]).is_ok_and(|n| n > 0) {}
    assert_eq!(fs::write(dir.join("more"), [1]).unwrap_err().kind(), ErrorKind::StorageFull);

    let mut stage = Stage::set();
    let files = FileRecovery::new(dir);
    stage.back.ask(move |backend| backend.config_mut().recovery = Some(Box::new(files)));
    let (id, mut guest) = stage.guest();
    guest.connect_honestly();
    guest.play(&[Slot::Data(guest.request(0, 64))]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    stage.traffic.flows();
    for page in ["control", "0/tx", "0/rx"] {
        let lines = log_lines::with(&vif.join(page).display().to_string());
        let line = lines.first().unwrap_or_else(|| panic!("nothing is said of {page}"));
        assert!(line.contains("No space left on device") && line.contains("crashes"), "{line}");
    }
    // Its owner has it all the same.
    assert!(vif.join("lock").exists());
    stage.clear(id, guest);
    stage.end();
}
