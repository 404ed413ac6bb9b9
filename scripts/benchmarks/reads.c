/* The reads that are timed, in a language that adds nothing to them:
 *
 *   reads sequential FILE OFFSET NBYTES BLOCK IS_DIRECT READERS  seconds; each reader has its part
 *   reads random     FILE OFFSET NBYTES COUNT                    ns of each read of 4 KiB
 *   reads touch      FILE OFFSET NBYTES                          seconds to map and touch the pages
 *   reads open       FILE COUNT                                  ns of each open and close
 *   reads stat       FOLDER < NAMES                              ns of each stat, a name a line
 *
 * No place is read twice by `random`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_READERS = 64 };

static long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void die(const char *what) {
  perror(what);
  exit(1);
}

static int open_or_die(const char *path, int flags) {
  int fd = open(path, O_RDONLY | flags);
  if (fd < 0) die(path);
  return fd;
}

/* Aligned for O_DIRECT, and with its pages there. */
static char *make_buffer(long size) {
  char *buffer = aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE);
  if (!buffer) die("memory");
  memset(buffer, 1, size);
  return buffer;
}

struct part {
  const char *path;
  long offset, nbytes, block;
  int flags;
  char *buffer;
  long begin, end;
};

static pthread_barrier_t barrier;

static void read_part(struct part *part) {
  part->begin = now();
  int fd = open_or_die(part->path, part->flags);
  long at = part->offset, end = at + part->nbytes;
  while (at < end) {
    long wanted = end - at < part->block ? end - at : part->block;
    /* O_DIRECT wants whole pages; past the end of the file it gets what there is. */
    if (part->flags & O_DIRECT) wanted = (wanted + PAGE - 1) / PAGE * PAGE;
    long got = pread(fd, part->buffer, wanted, at);
    if (got <= 0) die(part->path);
    at += got;
  }
  close(fd);
  part->end = now();
}

static void *run_part(void *part) {
  pthread_barrier_wait(&barrier);
  read_part(part);
  return NULL;
}

static void sequential(char **words) {
  long offset = atol(words[1]), nbytes = atol(words[2]), block = atol(words[3]);
  int flags = atoi(words[4]) ? O_DIRECT : 0, readers = atoi(words[5]);
  if (readers < 1 || readers > MAX_READERS) exit(2);
  static struct part parts[MAX_READERS];
  /* Whole blocks for each but the last. */
  long each = (nbytes / readers + block - 1) / block * block, at = 0;
  for (int i = 0; i < readers; i++, at += each) {
    long left = at < nbytes ? nbytes - at : 0;
    parts[i] = (struct part){.path = words[0], .offset = offset + at,
                             .nbytes = left < each ? left : each, .block = block,
                             .flags = flags, .buffer = make_buffer(block)};
  }
  pthread_t threads[MAX_READERS];
  pthread_barrier_init(&barrier, NULL, readers);
  for (int i = 1; i < readers; i++) pthread_create(&threads[i], NULL, run_part, &parts[i]);
  run_part(&parts[0]);
  long begin = parts[0].begin, end = parts[0].end;
  for (int i = 1; i < readers; i++) {
    pthread_join(threads[i], NULL);
    if (parts[i].begin < begin) begin = parts[i].begin;
    if (parts[i].end > end) end = parts[i].end;
  }
  printf("%.9f\n", (end - begin) / 1e9);
}

static void random_reads(char **words) {
  long offset = atol(words[1]), pages = atol(words[2]) / PAGE, count = atol(words[3]);
  long *places = malloc(pages * sizeof *places);
  if (count > pages) count = pages;
  for (long i = 0; i < pages; i++) places[i] = i;
  srandom(1);
  for (long i = 0; i < count; i++) {
    long other = i + random() % (pages - i), place = places[other];
    places[other] = places[i];
    places[i] = place;
  }
  char *buffer = make_buffer(PAGE);
  int fd = open_or_die(words[0], 0);
  posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  for (long i = 0; i < count; i++) {
    long begin = now();
    if (pread(fd, buffer, PAGE, offset + places[i] * PAGE) != PAGE) die(words[0]);
    printf("%ld\n", now() - begin);
  }
}

static void touch(char **words) {
  long offset = atol(words[1]), nbytes = atol(words[2]), skipped = offset % PAGE;
  int fd = open_or_die(words[0], 0);
  long begin = now();
  char *mapping = mmap(NULL, nbytes + skipped, PROT_READ, MAP_SHARED, fd, offset - skipped);
  if (mapping == MAP_FAILED) die(words[0]);
  for (long at = 0; at < nbytes + skipped; at += PAGE) *(volatile char *)(mapping + at);
  printf("%.9f\n", (now() - begin) / 1e9);
}

static void opens(char **words) {
  for (long count = atol(words[1]); count > 0; count--) {
    long begin = now();
    close(open_or_die(words[0], 0));
    printf("%ld\n", now() - begin);
  }
}

static void stats(char **words) {
  char name[512];
  struct stat status;
  if (chdir(words[0]) != 0) die(words[0]);
  while (fgets(name, sizeof name, stdin)) {
    name[strcspn(name, "\n")] = 0;
    long begin = now();
    if (stat(name, &status) != 0) die(name);
    printf("%ld\n", now() - begin);
  }
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (!strcmp(what, "sequential") && argc == 8)
    sequential(argv + 2);
  else if (!strcmp(what, "random") && argc == 6)
    random_reads(argv + 2);
  else if (!strcmp(what, "touch") && argc == 5)
    touch(argv + 2);
  else if (!strcmp(what, "open") && argc == 4)
    opens(argv + 2);
  else if (!strcmp(what, "stat") && argc == 3)
    stats(argv + 2);
  else
    return 2;
  return 0;
}
