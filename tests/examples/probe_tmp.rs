//! tmp
use symbolic::common::ByteView;
use symbolic::debuginfo::Object;
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let view = ByteView::open(&args[0]).unwrap();
    let object = Object::parse(&view).unwrap();
    let session = object.debug_session().unwrap();
    let (lo, hi) = (0x744ca0u64, 0x7e13b6u64);
    let mut fs: Vec<(u64, u64, usize, usize, String)> = vec![];
    let (mut errors, mut total, mut nolines, mut bytes, mut nobytes) = (0, 0, 0, 0u64, 0u64);
    for f in session.functions() {
        let Ok(f) = f else { errors += 1; continue };
        total += 1; bytes += f.size;
        let leaf = f.lines.len() > f.inlinees.len();
        if !leaf { nolines += 1; nobytes += f.size; }
        if f.address >= lo && f.address < hi { fs.push((f.address, f.end_address(), f.lines.len(), f.inlinees.len(), f.name.as_str().chars().take(50).collect())); }
    }
    fs.sort();
    println!("errors {errors} total {total} without {nolines}; bytes {bytes} without {nobytes}");
    let mut last = None;
    for f in &fs { let has = f.2 > f.3; if last != Some(has) { println!("{:x} {:x} {} {} {}", f.0, f.1, f.2, f.3, f.4); last = Some(has); } }
}
