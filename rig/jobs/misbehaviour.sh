# Every wrong and odd thing that a guest can do on a TX ring; a line each on the console.
misbehaviour
